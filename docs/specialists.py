"""The picture of what specialists are, from the demo's runs: `make demo`, then `python docs/specialists.py`."""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from torchmcl import data
from torchmcl.data import Examples
from torchmcl.inference.predictor import Specialists

TRUTH, NOT_MINE, INK = "#00796b", "#ffcc80", "#263238"
PANELS = {
    "ie": "An ordinary ensemble: everyone answers for everything",
    "amcl": "Specialists (AMCL): each knows its own, and says “not mine”",
}


def scores(run: Path, test: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability, (classes, M) each, that a member gives to the truth and to "not mine"."""
    specialists = Specialists.load(run)
    members = specialists.predict(test).members
    truth = members[:, torch.arange(len(test)), test.target]
    not_mine = members[:, :, -1] if specialists.method.auxiliary else torch.zeros_like(truth)
    of_class = [test.target == c for c in range(len(test.classes))]
    return tuple(torch.stack([p[:, own].mean(1) for own in of_class]).numpy() for p in (truth, not_mine))  # type: ignore[return-value]


def panel(axes: Axes, title: str, truth: np.ndarray, not_mine: np.ndarray, test: Examples) -> None:
    """One ensemble: a column a class under one of its images, a row a member."""
    classes, members = truth.shape
    colour = [np.array(matplotlib.colors.to_rgb(name)) for name in ("white", TRUTH, NOT_MINE)]
    shares = np.stack([1 - truth - not_mine, truth, not_mine], -1).clip(0, 1).transpose(1, 0, 2)
    axes.imshow(shares @ np.stack(colour), aspect="auto", extent=(0, classes, members, 0))
    for c in range(classes):
        image = test.images[int((test.target == c).nonzero()[0])][0].numpy()
        axes.imshow(image, cmap="gray_r", extent=(c + 0.1, c + 0.9, -0.1, -1.1), aspect="auto")
        for m in range(members):
            own = truth[c, m] > 0.5
            axes.text(
                c + 0.5,
                m + 0.5,
                f"{100 * truth[c, m]:.0f}",
                color="white" if own else INK,
                size=8,
                ha="center",
                va="center",
                weight="bold" if own else "normal",
                alpha=1 if own else 0.55,
            )
    axes.set(xlim=(0, classes), ylim=(members, -1.15), xticks=[], yticks=np.arange(members) + 0.5)
    axes.set_yticklabels([f"member {m + 1}" for m in range(members)], size=8, color=INK)
    axes.set_title(title, size=9, color=INK, weight="bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.hlines(range(members + 1), 0, classes, color="white", linewidth=1.5)
    axes.vlines(range(classes + 1), 0, members, color="white", linewidth=1.5)


def draw(found: dict[str, tuple[np.ndarray, np.ndarray]], test: Examples) -> Figure:
    """Both ensembles beside each other."""
    figure = Figure(figsize=(10.4, 2.75), layout="constrained", facecolor="white")
    for axes, (name, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        panel(axes, title, *found[name], test)
    keys = {TRUTH: "probability that the member gives to the truth, in percent", NOT_MINE: "to “not mine”"}
    figure.legend(
        handles=[Patch(color=colour, label=label) for colour, label in keys.items()],
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    return figure


def main(runs: Path) -> None:
    """Write the picture here, its numbers beside the demo's."""
    test = data.load("digits", parts=("test",)).test
    found = {name: scores(runs / name, test) for name in PANELS}
    plain = {
        name: dict(zip(("truth", "not_mine"), (part.astype(float).round(4).tolist() for part in parts), strict=True))
        for name, parts in found.items()
    }
    here = Path(__file__).parent
    (here.parent / "results/demo/specialists.json").write_text(json.dumps(plain) + "\n", encoding="utf-8")
    matplotlib.rcParams["svg.hashsalt"] = "torchmcl"  # the same file each time
    draw(found, test).savefig(here / "specialists.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))

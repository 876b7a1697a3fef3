"""Draw docs/specialists.svg from the demo's runs: run `make demo`, then `python docs/specialists.py`."""

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

CORRECT, NOT_MINE, INK = "#00796b", "#ffcc80", "#263238"
PANELS = {
    "ie": "An ordinary ensemble: every member knows every digit",
    "amcl": "Specialists (AMCL): each digit has one expert",
}


def scores(run: Path, test: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean probabilities of the correct class and of "not mine", (classes, M) each."""
    specialists = Specialists.load(run)
    members = specialists.predict(test).members
    correct = members[:, torch.arange(len(test)), test.target]
    not_mine = members[:, :, -1] if specialists.method.auxiliary else torch.zeros_like(correct)
    of_class = [test.target == c for c in range(len(test.classes))]
    return tuple(torch.stack([p[:, own].mean(1) for own in of_class]).numpy() for p in (correct, not_mine))  # type: ignore[return-value]


def panel(axes: Axes, title: str, correct: np.ndarray, not_mine: np.ndarray, test: Examples) -> None:
    """Draw one ensemble: one row per member, one column per class below an image of the class."""
    classes, members = correct.shape
    colour = [np.array(matplotlib.colors.to_rgb(name)) for name in ("white", CORRECT, NOT_MINE)]
    shares = np.stack([1 - correct - not_mine, correct, not_mine], -1).clip(0, 1).transpose(1, 0, 2)
    axes.imshow(shares @ np.stack(colour), aspect="auto", extent=(0, classes, members, 0))
    for c in range(classes):
        image = test.images[int((test.target == c).nonzero()[0])][0].numpy()
        axes.imshow(image, cmap="gray_r", extent=(c + 0.1, c + 0.9, -0.1, -1.1), aspect="auto")
        for m in range(members):
            own = correct[c, m] > 0.5
            axes.text(
                c + 0.5,
                m + 0.5,
                f"{100 * correct[c, m]:.0f}",
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


def draw(probabilities: dict[str, tuple[np.ndarray, np.ndarray]], test: Examples) -> Figure:
    """Draw both ensembles side by side."""
    figure = Figure(figsize=(10.4, 2.75), layout="constrained", facecolor="white")
    for axes, (name, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        panel(axes, title, *probabilities[name], test)
    keys = {CORRECT: "probability of the correct digit, in percent", NOT_MINE: "probability of “not mine”"}
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
    """Write the figure to docs/ and its numbers to results/demo/."""
    test = data.load("digits", parts=("test",)).test
    probabilities = {name: scores(runs / name, test) for name in PANELS}
    plain = {
        name: dict(zip(("truth", "not_mine"), (part.astype(float).round(4).tolist() for part in parts), strict=True))
        for name, parts in probabilities.items()
    }
    here = Path(__file__).parent
    (here.parent / "results/demo/specialists.json").write_text(json.dumps(plain) + "\n", encoding="utf-8")
    matplotlib.rcParams["svg.hashsalt"] = "torchmcl"  # makes the file reproducible
    draw(probabilities, test).savefig(here / "specialists.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))

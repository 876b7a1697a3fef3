"""Draw docs/specialists.svg from the demo's runs: run `make demo`, then `python docs/specialists.py`."""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from torchmcl import data
from torchmcl.analysis.figures.who_knows_what import CORRECT, NOT_MINE, panel
from torchmcl.analysis.images import to_rgb
from torchmcl.data import Examples
from torchmcl.inference.predictor import Specialists

INK = "#263238"
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


def draw(probabilities: dict[str, tuple[np.ndarray, np.ndarray]], test: Examples) -> Figure:
    """Draw both ensembles side by side."""
    figure = Figure(figsize=(10.4, 2.75), layout="constrained", facecolor="white")
    first = [int((test.target == c).nonzero()[0]) for c in range(len(test.classes))]
    images = [255 - to_rgb(test.images[index]) for index in first]
    for axes, (name, title) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        panel(axes, *probabilities[name], images, ink=INK)
        axes.set_title(title, size=9, color=INK, weight="bold")
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

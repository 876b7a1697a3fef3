"""From the runs of run.sh: results.json and histogram.png beside this file. Usage: histogram.py RUNS [COMMIT]"""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from torchmcl import data
from torchmcl.predictor import Specialists

HERE = Path(__file__).parent
CLASSES = ("dog", "airplane")
METHODS = {"amcl": "#D55E00", "cmcl": "#0072B2"}  # told apart by the colour-blind, and in grey


def confidence(run: Path, test: data.examples.Examples) -> dict[str, list[float]]:
    """Probability that the ensemble gives to the truth of each test image, by class."""
    truth = Specialists.load(run).predict(test.images).probabilities.gather(1, test.target[:, None])[:, 0]
    return {name: [round(p, 4) for p in truth[test.target == c].tolist()] for c, name in enumerate(CLASSES)}


def main(runs: Path, commit: str | None = None) -> None:
    test = data.load("cifar10", classes=CLASSES, parts=("test",)).test
    rows, shown = [], {}
    for method in METHODS:
        for seed in range(3):
            run = runs / f"{method}-{seed}"
            figures = json.loads((run / "metrics.json").read_text())
            found = confidence(run, test)
            shown.setdefault(method, found)
            medians = {name: float(torch.tensor(values).median()) for name, values in found.items()}
            rows.append(
                {
                    "method": method,
                    "seed": seed,
                    "oracle_error": figures["oracle_error"],
                    "top1_error": figures["top1_error"],
                    "median_confidence": {name: round(value, 4) for name, value in medians.items()},
                    "flags": figures.get("flags"),
                    "share": figures["share"],
                }
            )
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "results/confidence/run.sh RUNS",
        "commit": commit or head.strip(),
        "scale": "CIFAR-10 dog and airplane: 10,000 training and 2,000 test images; simple CNN of width 32, M=2, K=1, "
        "12 epochs, float32, the light fusion preset for AMCL, the paper's recipe otherwise",
        "published": {
            "amcl": {"oracle_error": 0.03, "top1_error": 3.12, "confidence": "near 1"},
            "cmcl": {"oracle_error": 0.21, "top1_error": 3.21, "confidence": "near .75"},
        },
    }
    (HERE / "results.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    draw(shown)


def draw(shown: dict[str, dict[str, list[float]]]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), sharey=True, layout="constrained")
    for axis, name in zip(axes, CLASSES, strict=True):
        for method, colour in METHODS.items():
            hatch = "" if method == "amcl" else "///"
            axis.hist(
                shown[method][name],
                bins=40,
                range=(0, 1),
                label=method.upper(),
                color=colour,
                alpha=0.75,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.3,
            )
        axis.set_title(f"test images of {name}")
        axis.set_xlabel("probability of the truth")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("images of 1,000")
    axes[0].legend(frameon=False, loc="upper left")
    figure.savefig(HERE / "histogram.png", dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

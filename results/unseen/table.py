"""From the runs of run.sh: results.json and table.md, beside this file or in OUT. Usage: table.py RUNS [OUT]"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

import yaml

HERE = Path(__file__).parent
METHODS = ("ie", "cmcl", "amcl")
SEPARATION = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR at 95 % TPR"}
KNOWN = {
    "accuracy": "accuracy",
    "oracle_error": "oracle error",
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier",
    "aurc": "AURC",
}


def rows(runs: Path) -> list[dict]:
    found = []
    for method in METHODS:
        for path in sorted(runs.glob(f"{method}-*/unseen.json")):
            figures = json.loads(path.read_text())
            promised = json.loads((path.parent / "calibration.json").read_text())
            found.append(
                {
                    "method": method,
                    "seed": int(path.parent.name.split("-")[1]),
                    **{name: figures[name] for name in KNOWN},
                    "scores": figures["unseen"]["scores"],
                    "rejection": {"coverage_validation": promised["coverage"], **figures["rejection"]},
                }
            )
    return found


def cell(values: list[float], digits: int = 2) -> str:
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(found: list[dict]) -> str:
    by_method = {method: own for method in METHODS if (own := [row for row in found if row["method"] == method])}
    known = [line("method", *KNOWN.values(), "seeds"), "|---" * (len(KNOWN) + 2) + "|"]
    told = [line("method", "score", *SEPARATION.values()), "|---" * (len(SEPARATION) + 2) + "|"]
    kept = [
        line("method", "coverage on validation", "on test", "error on accepted", "error on all"),
        "|---" * 5 + "|",
    ]
    for method, own in by_method.items():
        digits = {"nll": 3, "brier": 3}
        cells = [cell([row[name] for row in own], digits.get(name, 2)) for name in KNOWN]
        known.append(line(method, *cells, len(own)))
        for score in own[0]["scores"]:
            cells = [cell([row["scores"][score][name] for row in own]) for name in SEPARATION]
            told.append(line(method, score, *cells))
        names = ("coverage_validation", "coverage", "accepted_error", "error")
        kept.append(line(method, *(cell([row["rejection"][name] for row in own]) for name in names)))
    parts = [
        ("CIFAR-10 test set (percent, except NLL and Brier)", known),
        ("CIFAR-10 against SVHN (percent; higher scores mean less like the training data)", told),
        ("Calibrated to accept 95 % of the validation split (percent)", kept),
    ]
    return "\n\n".join([*(f"### {title}\n\n" + "\n".join(lines) for title, lines in parts), verdict(by_method)]) + "\n"


def verdict(by_method: dict[str, list[dict]]) -> str:
    """Each method's best score by its mean AUROC, on these very data, best method first."""
    best = {}
    for method, own in by_method.items():
        values = {score: [row["scores"][score]["auroc"] for row in own] for score in own[0]["scores"]}
        score = max(values, key=lambda name: mean(values[name]))
        best[method] = (mean(values[score]), f"{method} {cell(values[score])} ({score})")
    ranked = ", ".join(text for _, text in sorted(best.values(), reverse=True))
    return f"AUROC of each method's best score, chosen on these data: {ranked}."


def main(runs: Path, out: Path = HERE) -> None:
    found = rows(runs)
    config = yaml.safe_load((next(runs.glob("*/config.yaml"))).read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "results/unseen/run.sh RUNS",
        "commit": commit.strip(),
        "scale": f"CIFAR-10, {config['data_limit']} training images (a tenth held out for validation), all "
        f"10,000 test images; SVHN: 10,000 test images; simple CNN of width {config['width']}, M={config['members']}, "
        f"K = 1, {config['epochs']} epochs, learning rate times 0.2 every "
        f"{config['drop_every']} epochs, light fusion for AMCL, float32",
    }
    (out / "results.json").write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")
    (out / "table.md").write_text(f"# Unseen data\n\n{about['scale']}.\n\n{table(found)}")
    print(table(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

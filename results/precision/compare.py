"""From the runs of run.sh: results.json beside this file. Usage: compare.py RUNS"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
FIGURES = ("oracle_error", "top1_error", "harmonic_mean", "flags")


def main(runs: Path) -> None:
    rows = []
    for precision in ("32", "bf16-mixed"):
        for seed in range(3):
            figures = json.loads((runs / f"{precision}-{seed}" / "metrics.json").read_text())
            rows.append({"precision": precision, "seed": seed, **{name: figures[name] for name in FIGURES}})
    means = {
        precision: {
            name: round(mean(row[name] for row in rows if row["precision"] == precision), 2) for name in FIGURES[:2]
        }
        for precision in ("32", "bf16-mixed")
    }
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "results/precision/run.sh RUNS",
        "commit": commit.strip(),
        "scale": "CIFAR-10, 6,000 training and all 10,000 test images; simple CNN of width 8, M=2, K=1, 10 epochs, "
        "light fusion, the paper's recipe otherwise",
    }
    (HERE / "results.json").write_text(json.dumps({**about, "means": means, "rows": rows}, indent=1) + "\n")
    print(json.dumps(means, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""From the runs of run.sh: results.json, table.md and overlays.png beside this file. Usage: table.py RUNS"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, stdev

from torchmcl import data
from torchmcl.analysis.overlays import overlays
from torchmcl.predictor import Specialists

HERE = Path(__file__).parent
METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl", "amcl_balanced")
KEPT = ("oracle_error", "oracle_error_strict", "top1_error", "members", "members_strict", "mean_iou", "share", "purity")
PUBLISHED = (
    {  # Kim et al. 2022, table 5: (M, method) -> oracle, top-1
        (2, "smcl"): (11.71, 15.12),
        (2, "cmcl"): (13.33, 13.31),
        (2, "vmcl"): (10.73, 15.49),
        (2, "amcl"): (10.48, 11.53),
        (3, "smcl"): (10.65, 12.67),
        (3, "cmcl"): (10.86, 11.20),
        (3, "vmcl"): (10.27, 12.26),
        (3, "amcl"): (8.68, 9.60),
        (4, "smcl"): (9.52, 13.25),
        (4, "cmcl"): (10.42, 11.19),
        (4, "vmcl"): (9.30, 12.88),
        (4, "amcl"): (7.97, 8.83),
        (5, "smcl"): (9.37, 11.82),
        (5, "cmcl"): (9.75, 10.58),
        (5, "vmcl"): (9.44, 12.06),
        (5, "amcl"): (7.66, 8.61),
    }
    | {(1, method): (15.05, 15.05) for method in METHODS[1:-1]}
)


def rows(runs: Path) -> list[dict]:
    found = []
    for path in sorted(runs.glob("*-*-*/metrics.json")):
        method, members, seed = path.parent.name.split("-")
        figures = json.loads(path.read_text())
        found.append({"method": method, "M": int(members), "seed": int(seed), **{name: figures[name] for name in KEPT}})
    return found


def cell(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def table(found: list[dict]) -> str:
    lines = [
        "| M | method | oracle | top-1 | mean IoU | seeds | published oracle | published top-1 |",
        "|---" * 8 + "|",
    ]
    for members in range(1, 6):
        for method in METHODS:
            own = [row for row in found if (row["M"], row["method"]) == (members, method)]
            if not own:
                continue
            oracle, top1 = PUBLISHED.get((members, method), ("", ""))
            measured = [cell([row[name] for row in own]) for name in ("oracle_error", "top1_error", "mean_iou")]
            lines.append(f"| {members} | {method} | {' | '.join(measured)} | {len(own)} | {oracle} | {top1} |")
    return "\n".join(lines) + "\n"


def main(runs: Path) -> None:
    found = rows(runs)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout
    about = {
        "command": "results/segmentation/run.sh RUNS",
        "commit": commit.strip(),
        "scale": "iCoseg, 449 images of 75x125; FCN of width 16 (paper: 128), 30 epochs (paper: 300), batches of 32 "
        "(paper: 128), the rate times 0.2 every 8 epochs, light fusion; K=1",
        "seeds": "0, 1, 2 for M=2, else 0; the split follows the seed",
    }
    (HERE / "results.json").write_text(json.dumps({**about, "rows": found}, indent=1) + "\n")
    (HERE / "table.md").write_text(table(found))
    balanced = Specialists.load(runs / "amcl_balanced-2-2")
    figure = overlays(balanced, data.load("icoseg", seed=2, parts=("test",)).test)
    figure.savefig(HERE / "overlays.png", dpi=130)
    print(table(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Memory, open files and file sizes of a training over many epochs.

python benchmarks/long_run.py --epochs 2000 --out benchmarks/long_run.json
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch

from torchmcl.training import fit
from torchmcl.training.loop import Training

OPTIONS = {"members": 2, "width": 8, "batch_size": 128, "data_limit": 256, "warmup": 5, "patience": 10**6}
SHOWN = ("epoch", "seconds", "memory_mb", "open_files", "threads", "checkpoint_kb", "log_kb")


def measured(epochs: int, folder: Path) -> list[dict[str, float]]:
    """Train on digits and return one row per epoch."""
    rows: list[dict[str, float]] = []
    began, end_epoch = time.perf_counter(), Training._end_epoch

    def watched(training: Training, epoch: int) -> None:
        end_epoch(training, epoch)
        rows.append({"epoch": epoch, "seconds": round(time.perf_counter() - began, 1), **process(), **kept(folder)})

    Training._end_epoch = watched  # type: ignore[method-assign]
    try:
        fit("amcl", "mlp", "digits", epochs=epochs, out=folder, verbose=False, **OPTIONS)
    finally:
        Training._end_epoch = end_epoch  # type: ignore[method-assign]
    return rows


def process() -> dict[str, float]:
    """Return the memory, open files and threads of this process (Linux only)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "memory_mb": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "open_files": len(os.listdir("/proc/self/fd")) - 1,  # one to list them
        "threads": int(status["Threads"]),
    }


def kept(folder: Path) -> dict[str, float]:
    """Return the sizes of the files of the run."""
    sizes = {"checkpoint_kb": folder / "checkpoints" / "last.pt", "log_kb": folder / "log.csv"}
    return {name: round(path.stat().st_size / 1024, 1) for name, path in sizes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=None, help="JSON file with 100 of the rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        rows = measured(options.epochs, Path(place) / "run")
    some = [row for row in rows if row["epoch"] % max(options.epochs // 10, 1) == 0 or row["epoch"] == 10]
    print("  ".join(f"{name:>13}" for name in SHOWN))
    for row in some:
        print("  ".join(f"{row[name]:>13}" for name in SHOWN))
    if options.out is not None:
        every = max(options.epochs // 100, 1)
        options.out.write_text(json.dumps([row for row in rows if row["epoch"] % every == 0], indent=1) + "\n")


if __name__ == "__main__":
    main()

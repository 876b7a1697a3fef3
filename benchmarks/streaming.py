"""Peak memory of one epoch on image files that are not loaded into memory, by number of images.

python benchmarks/streaming.py --out benchmarks/streaming.json

For each number of images it writes that many PNG files of noise to ten folders, and trains a tiny ensemble for an epoch
in a new process in three ways: from `folder:PATH` with `data_in_memory=0`, from a map-style `Dataset` with
`data.from_dataset`, and, for comparison, from the folder loaded into memory. Linux only, since it reads /proc:

- main_mb: the largest resident set of the training process (VmHWM), shared libraries included
- worker_mb: the largest resident set of a worker process, most of which is shared with the training process
- total_mb: the largest sum over all processes, with shared pages counted once (PSS, sampled every 20 ms)

`growth` is, per way, the megabytes of memory per megabyte of pixels from the smallest to the largest number of images:
about 1 for a data set in memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import machine
import numpy as np
from PIL import Image

WAYS = ("folder", "dataset", "in memory")
SHOWN = ("way", "images", "pixels_mb", "main_mb", "worker_mb", "total_mb")
CLASSES = 10
OPTIONS = {"members": 2, "width": 4, "exchange": "none", "epochs": 1, "batch_size": 128, "verbose": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[5000, 20000], help="numbers of images")
    parser.add_argument("--side", type=int, default=64, help="height and width of the images in pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="trainings per way; the median is reported")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.add_argument("--train", nargs=2, default=None, help=argparse.SUPPRESS)  # a way and a folder, in the process
    options = parser.parse_args()
    if options.train:
        train(*options.train, workers=options.workers)
        return
    rows = []
    print(" ".join(f"{name:>10}" for name in SHOWN))
    for count in sorted(options.counts):
        with tempfile.TemporaryDirectory() as place:
            draw(Path(place), count, options.side)
            for way in WAYS:
                row = {"way": way, "images": count, "pixels_mb": round(count * 3 * options.side**2 / 1e6, 1)}
                rounds = [measured(way, place, options.workers) for _ in range(options.rounds)]
                rows.append(row | {name: median(one[name] for one in rounds) for name in rounds[0]})
                print(" ".join(f"{rows[-1][name]:>10}" for name in SHOWN))
    found = {"machine": machine.describe(1), "side": options.side, "workers": options.workers}
    found |= {"rounds": options.rounds, "rows": rows}
    found["growth"] = {way: growth([row for row in rows if row["way"] == way]) for way in WAYS}
    print("growth:", found["growth"])
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def growth(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the megabytes of memory per megabyte of pixels, from the first row to the last."""
    more = max(rows[-1]["pixels_mb"] - rows[0]["pixels_mb"], 1e-9)
    return {name: round((rows[-1][name] - rows[0][name]) / more, 3) for name in ("main_mb", "total_mb")}


def draw(folder: Path, count: int, side: int) -> None:
    """Write images of noise, equally many per class."""
    chance = np.random.default_rng(0)
    for c in range(CLASSES):
        (folder / str(c)).mkdir()
    for number in range(count):
        pixels = chance.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / str(number % CLASSES) / f"{number:06}.png", compress_level=1)


def measured(way: str, folder: str, workers: int) -> dict[str, float]:
    """Train in a new process, and sample its memory and that of its children until it ends."""
    command = [sys.executable, __file__, "--workers", str(workers), "--train", way, folder]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    peaks = {"main_mb": 0.0, "worker_mb": 0.0, "total_mb": 0.0}
    while process.poll() is None:
        everyone = family(process.pid)
        found = {
            "main_mb": field(process.pid, "status", "VmHWM"),
            "worker_mb": max((field(pid, "status", "VmHWM") for pid in everyone - {process.pid}), default=0.0),
            "total_mb": sum(field(pid, "smaps_rollup", "Pss") for pid in everyone),
        }
        # If a process starts or ends in between, the shares belong to different sets of processes and have no sum.
        if everyone == family(process.pid):
            peaks = {name: max(value, found[name]) for name, value in peaks.items()}
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"the training of {way} failed")
    return {name: round(value, 1) for name, value in peaks.items()}


def family(pid: int) -> set[int]:
    """Return a process and its descendants that still have memory."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # has ended
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return {one for one in found if field(one, "status", "VmRSS")}


def field(pid: int, file: str, name: str) -> float:
    """Return a field of /proc in megabytes, or 0 if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), 0.0)


def train(way: str, folder: str, workers: int) -> None:
    """Train one epoch; imports are local so that the measuring process stays small."""
    import torch
    from torch.utils.data import Dataset

    from torchmcl import data, fit

    class Photos(Dataset):
        """A plain map-style dataset."""

        def __init__(self) -> None:
            self.paths = sorted(str(path) for path in Path(folder).rglob("*.png"))
            self.targets = [int(Path(path).parent.name) for path in self.paths]

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
            with Image.open(self.paths[at]) as image:
                return torch.from_numpy(np.array(image)).permute(2, 0, 1), self.targets[at]

    torch.set_num_threads(1)
    if way == "dataset":
        fit("ie", "simple_cnn", data.from_dataset(Photos(), validation=0.1), workers=workers, **OPTIONS)
    else:
        limit = 0.0 if way == "folder" else 1000.0
        fit("ie", "simple_cnn", f"folder:{folder}", workers=workers, data_in_memory=limit, **OPTIONS)


if __name__ == "__main__":
    main()

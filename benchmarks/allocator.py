"""The time of a training step with the default allocator of the C library, and with freed memory kept.

Usage: allocator.py [--rounds 8] [--json FILE]. The commands of torchmcl keep freed memory. Calling `fit` from Python
does not change the allocator.
"""

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import machine
import torch

from torchmcl import fit
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl.data.examples import DataSet, Examples

STEPS, BATCH = 12, 128
WAYS = {"usual": nullcontext, "kept": keep_freed_memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=8, help="trainings per allocator, in turn; the first is not counted"
    )
    parser.add_argument("--json", type=Path, default=None, help="JSON file to write")
    options = parser.parse_args()
    figures = {f"{members} x simple_cnn": measured(members, options.rounds) for members in (1, 5)}
    for name, row in figures.items():
        print(f"{name}: usual {row['usual']} ms per step, kept {row['kept']} ms per step, ratio {row['ratio']}")
    if options.json:
        about = {"batch": BATCH, "seed": 0, "machine": machine.describe(torch.get_num_threads())}
        options.json.write_text(json.dumps({**about, "figures": figures}, indent=1) + "\n")


def measured(members: int, rounds: int) -> dict[str, float]:
    """Return the median of the milliseconds per step over the rounds."""
    data, seconds = made_up(), {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in WAYS.items():
            with way():
                start = time.perf_counter()
                fit("ie", "simple_cnn", data, members=members, epochs=1, verbose=False)
                seconds[name].append((time.perf_counter() - start) / STEPS)
    found = {name: round(1000 * median(times[1:]), 1) for name, times in seconds.items()}
    return {**found, "ratio": round(found["usual"] / found["kept"], 3)}


def made_up() -> DataSet:
    """Return random images with the shape of CIFAR-10: STEPS training batches and a few test images."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (STEPS * BATCH, 3, 32, 32), dtype=torch.uint8, generator=generator)
    target = torch.randint(10, (STEPS * BATCH,), generator=generator)
    train = Examples(images, target, tuple(map(str, range(10))))
    return DataSet("made-up", {"train": train, "test": train.subset(range(16))})


if __name__ == "__main__":
    main()

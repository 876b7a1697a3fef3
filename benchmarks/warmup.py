"""AMCL's warm-up: `warmup="stable"` against fixed durations, on scikit-learn's digits.

Usage: python benchmarks/warmup.py [seeds]. Writes warmup.json next to this file.

Simple networks are trained with AMCL and K = 1 for 30 epochs. The duration of a warm-up follows from the counts of the
memory: each epoch counts every training example once. Members without a class own none when the memory is fixed.
"""

import json
import sys
from pathlib import Path
from statistics import mean

import machine
import torch

from torchmcl import data, fit
from torchmcl._utils import atomic

HERE = Path(__file__).parent
WARMUPS = (1, 5, 10, "stable")
MEMBERS = (5, 10)
OPTIONS = {"epochs": 30, "width": 16, "exchange": "none", "data_validation": 0.0}


def train(members: int, warmup: int | str, seed: int) -> dict[str, float]:
    """Return the errors in percent, the epochs of the warm-up and the number of members without a class."""
    trained = fit("amcl", "mlp", "digits", members=members, warmup=warmup, seed=seed, verbose=False, **OPTIONS)
    memory, found = trained.memory, trained.metrics
    return {
        "oracle_error": found["oracle_error"],
        "top1_error": found["top1_error"],
        "epochs": int(memory.counts.sum()) / len(data.load("digits", parts=("train",)).train),
        "without_class": int((memory.flags.sum(0) == 0).sum()),
    }


def main(seeds: int) -> None:
    found = {"machine": machine.describe(torch.get_num_threads()), "options": OPTIONS, "seeds": [*range(seeds)]}
    found["rows"] = []
    for members in MEMBERS:
        for warmup in WARMUPS:
            runs = [train(members, warmup, seed) for seed in range(seeds)]
            means = {name: mean(run[name] for run in runs) for name in runs[0]}
            found["rows"].append({"members": members, "warmup": warmup, **means, "runs": runs})
            print(members, warmup, {name: round(value, 3) for name, value in means.items()}, flush=True)
    atomic.write(HERE / "warmup.json", json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)

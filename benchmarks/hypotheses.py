"""A step of 16 hypotheses on one trunk, as a multiple of a step of one network with 16 outputs.

python benchmarks/hypotheses.py --out benchmarks/hypotheses.json

The network is an MLP 64-W-W with 16 outputs, trained with the mean squared error of all outputs. The candidates have
the same trunk and 16 heads of one output: methods of torchmcl with a `Regression` task, with and without scores, and
`winner_takes_all` in a plain loop. All of them are trained with Adam on the same batches. The candidates alternate in
one process, in the reverse order in every other round, and the median of the rounds' ratios is reported, once of the
elapsed time and once of the CPU time, which other processes disturb less. The target is met if the former is at most
1.15.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import machine
import torch
from torch import Tensor, nn

from torchmcl import Ensemble, Regression, State, methods
from torchmcl._utils import atomic
from torchmcl.functional import winner_takes_all

HYPOTHESES, INPUTS, STATE = 16, 64, State(1, epochs=100)
CANDIDATES: dict[str, dict[str, Any]] = {
    "smcl": {},
    "annealed": {},
    "smcl, bce": {"score": "bce"},
    "annealed, bce": {"score": "bce"},
}
TARGET = 1.15
Step = Callable[[Tensor, Tensor], None]


def mlp(width: int, outputs: int) -> nn.Sequential:
    """Return the network; the trunk consists of the first four layers."""
    hidden = [nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def plain(width: int, loss: Callable[[Tensor], Tensor]) -> Step:
    """Return a training step of one network with 16 outputs, given the loss of its squared errors (B, M)."""
    network = mlp(width, HYPOTHESES)
    optimizer = torch.optim.Adam(network.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss((network(x) - y).square()).backward()
        optimizer.step()

    return step


def ours(width: int, name: str, options: dict[str, Any], targets: Tensor) -> Step:
    """Return a training step of 16 heads on one trunk."""
    method = methods.build(name, members=HYPOTHESES, task=Regression(1, **options).standardised(targets))
    ensemble = Ensemble.build(method, lambda outputs: mlp(width, outputs), cut=4, exchange="weight_sharing")
    objective, optimizer = method.new_objective(), torch.optim.Adam(ensemble.parameters())

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        objective(ensemble(x), y, STATE).loss.backward()
        optimizer.step()

    return step


def batches(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Return batches with two modes, so that every hypothesis wins some targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, size, INPUTS, generator=generator)
    side, noise = torch.randn(2, count, size, 1, generator=generator)
    y = side.sign() * x[:, :, :4].sum(2, keepdim=True) + noise
    return list(zip(x, y, strict=True))


def measure(width: int, batch: int, rounds: int, steps: int) -> dict[str, Any]:
    """Return the milliseconds per step, and the ratios, of all candidates."""
    torch.manual_seed(0)
    data = batches(steps, batch)
    targets = torch.cat([y for _, y in data])
    candidates = {"one network": plain(width, torch.mean)}
    candidates |= {name: ours(width, name.split(",")[0], own, targets) for name, own in CANDIDATES.items()}
    candidates["winner_takes_all"] = plain(width, lambda errors: winner_takes_all(errors.T)[0])
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name in sorted(candidates, reverse=number % 2 == 0):
            start = time.perf_counter(), time.process_time()
            for x, y in data:
                candidates[name](x, y)
            if number:  # the first round is for warming up
                seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    found: dict[str, Any] = {"width": width, "batch": batch, "candidates": {}}
    for name, times in seconds.items():
        pairs = list(zip(times, seconds["one network"], strict=True))
        ratio, of_cpu = (round(median(own[at] / one[at] for own, one in pairs), 3) for at in (0, 1))
        row = {"milliseconds": round(1e3 * median(time[0] for time in times) / steps, 3), "ratio": ratio}
        found["candidates"][name] = {**row, "cpu_ratio": of_cpu, "met": ratio <= TARGET}
    print(f"width {width}, batches of {batch}:", {name: one["ratio"] for name, one in found["candidates"].items()})
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 512, 1024], help="widths of the trunk")
    parser.add_argument("--batches", type=int, nargs="+", default=[256], help="batch sizes")
    parser.add_argument("--rounds", type=int, default=12, help="rounds per candidate")
    parser.add_argument("--steps", type=int, default=20, help="steps per round")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(width, batch, given.rounds, given.steps) for width in given.widths for batch in given.batches]
    results = {"machine": machine.describe(1), "hypotheses": HYPOTHESES, "rounds": given.rounds, "target": TARGET}
    if given.out:
        atomic.write(given.out, json.dumps({**results, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

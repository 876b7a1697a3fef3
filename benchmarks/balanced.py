"""The balanced assignment: its time as a share of a training step, and its distance to the exact solution.

Usage: python benchmarks/balanced.py [repeats]. Writes balanced.json next to this file; 0 repeats omit the time.

- time: seconds of `TopK` and `Balanced` per batch, and of a training step of ten simple CNNs of width 32 on images of
  3 x 32 x 32 and 1 x 8 x 8 pixels, measured in turn in one process. A step with 4,096 images is 32 times one with 128.
- exact: total regret above that of the linear program, divided by what separates the best choice from a random one.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import machine
import torch
from torch import Tensor

from torchmcl import Ensemble, State, methods
from torchmcl._utils import atomic
from torchmcl.assignment import Balanced, TopK, balance
from torchmcl.training.recipe import Recipe

HERE = Path(__file__).parent
MEMBERS, WIDTH, CLASSES = 10, 32, 10
TARGET = 0.03


def regrets(kind: str, examples: int, generator: torch.Generator) -> Tensor:
    """Regrets (M, B) of members that are alike, of which one is ahead, or that are best at different classes."""
    noise = torch.randn(MEMBERS, examples, generator=generator)
    if kind == "own classes":
        skill = torch.randn(MEMBERS, CLASSES, generator=torch.Generator().manual_seed(1))
        return 2 * skill[:, torch.randint(CLASSES, (examples,), generator=generator)] + 0.1 * noise
    return noise - (kind == "one ahead") * torch.tensor([3.0] + [0.0] * (MEMBERS - 1))[:, None]


def step(shape: tuple[int, ...], examples: int):
    method = methods.build("smcl", members=MEMBERS, classes=CLASSES)
    ensemble = Ensemble.build(method, "simple_cnn", width=WIDTH, channels=shape[0], exchange="none").train()
    ensemble = ensemble.to(memory_format=torch.channels_last)
    objective, optimizer = method.new_objective(), Recipe().build(ensemble.parameters())
    x = torch.randn(examples, *shape).contiguous(memory_format=torch.channels_last)
    target = torch.randint(CLASSES, (examples,))

    def run():
        optimizer.zero_grad()
        objective(ensemble(x), target).loss.backward()
        optimizer.step()

    return run


def timed(candidates: dict, repeats: int) -> dict[str, float]:
    """Return the median seconds of each candidate, measured in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


def times(repeats: int) -> list[dict]:
    generator, candidates = torch.Generator().manual_seed(0), {}
    for shape in ((3, 32, 32), (1, 8, 8)):
        candidates[f"step {shape}"] = step(shape, 128)
    for examples in (128, 4096):
        for k in (1, 3):
            for kind in ("alike", "one ahead", "own classes"):
                given = regrets(kind, examples, generator)
                for name, rule in (("TopK", TopK(k)), ("Balanced", Balanced(k))):
                    candidates[f"{name} B={examples} K={k} {kind}"] = lambda rule=rule, given=given: rule(
                        given, State()
                    )
    found, rows = timed(candidates, repeats), []
    for name, seconds in found.items():
        row = {"candidate": name, "ms": 1e3 * seconds}
        for shape in ((3, 32, 32), (1, 8, 8)):
            if "B=" in name:
                parts = 4096 // 128 if "B=4096" in name else 1
                row[f"share_of_step_{shape[1]}x{shape[2]}"] = seconds / (parts * found[f"step {shape}"])
        rows.append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    return rows


def distance(examples: int = 1024) -> list[dict]:
    rows, generator = [], torch.Generator().manual_seed(0)
    for kind in ("alike", "one ahead", "own classes"):
        for k in (1, 3):
            for slack in (0.0, 0.3):
                given, found = regrets(kind, examples, generator), {}
                for name, pairs in (("exact", given.numel()), ("sinkhorn", 0)):
                    balance.EXACT = pairs
                    found[name] = float((given * Balanced(k, slack)(given, State())).sum())
                balance.EXACT = EXACT
                scale = float(given.mean() * examples * k - (given * TopK(k)(given, State())).sum())
                rows.append(
                    {"kind": kind, "k": k, "slack": slack, "excess": (found["sinkhorn"] - found["exact"]) / scale}
                )
                print(rows[-1])
    return rows


def main(repeats: int) -> None:
    found = {"machine": machine.describe(torch.get_num_threads()), "members": MEMBERS, "repeats": repeats}
    found |= {"time": times(repeats) if repeats else None, "exact": distance()}
    if repeats:
        shares = [row["share_of_step_32x32"] for row in found["time"] if row["candidate"].startswith("Balanced")]
        found["target"] = {"limit": TARGET, "value": max(shares), "met": max(shares) <= TARGET}
        print(found["target"])
    atomic.write(HERE / "balanced.json", json.dumps(found, indent=1) + "\n")


EXACT = balance.EXACT

if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)

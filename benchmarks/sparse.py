"""The speed of sparse training (`sample_others`) over dense training, in the memory-based phase of AMCL.

python benchmarks/sparse.py --out benchmarks/sparse.json

Dense and sparse steps alternate in one process, in the reverse order in every other round, on random images of 32x32
with batches of 128, and the median of the rounds' ratios is reported. Classes are assigned evenly, so that each member
takes 1 / M of the images. `expected` is M / (1 + (M - 1) r), the ratio of the examples that pass through the networks.
With light fusion, stems and exchange see all images. `share` is their fraction of a dense step, measured as the time of
a forward and backward pass through them, and `expected` follows from it by Amdahl's law. The targets are a speed of 2.0
(M = 5, r = 0.25) and 3.5 (M = 10, r = 0.1) without an exchange, and 90 % of `expected` with light fusion; `achieved` is
the fraction of `expected` that is reached. `memory` is the peak of the bytes of tensors in a step, without the weights.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import machine
import torch
from gate import peak_of_tensors
from measure import in_turn
from torch.profiler import ProfilerActivity, profile

from torchmcl import Ensemble, State, methods
from torchmcl._utils import atomic
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl.data.loader import Batch
from torchmcl.training.device import OneDevice
from torchmcl.training.sample_others import SampleOthers, uniform_numbers
from torchmcl.training.step import Step

BATCH, CLASSES, STATE = 128, 10, State(2, epochs=2)  # the memory-based phase
NETWORKS: dict[str, dict[str, Any]] = {"simple_cnn": {}, "resnet10": {"width": 16}}
CASES = ((5, 0.25, 2.0), (10, 0.1, 3.5))  # members, r, and the least speed without an exchange
OF_EXPECTED = 0.9


def batches(count: int) -> list[Batch]:
    """Return batches of random images in which all classes are equally frequent."""
    generator = torch.Generator().manual_seed(0)
    target, index = torch.arange(BATCH) % CLASSES, torch.arange(BATCH)
    images = torch.randn(count, BATCH, 3, 32, 32, generator=generator)
    return [Batch(x.contiguous(memory_format=torch.channels_last), target, index, None, BATCH) for x in images]


def new_step(network: str, members: int, exchange: str, others: SampleOthers | None) -> Step:
    """Return a training step whose memory assigns the classes evenly."""
    method = methods.build("amcl", members=members, classes=CLASSES, warmup=1)
    options: dict[str, Any] = {"exchange": exchange, "preset": "light", **NETWORKS[network]}
    ensemble = Ensemble.build(method, network, **options).train()
    ensemble.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    objective: Any = method.new_objective()
    objective.memory.counts[torch.arange(CLASSES), torch.arange(CLASSES) % members] = 1
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    return Step(OneDevice("cpu"), ensemble, ensemble, objective, optimizer, others=others)


def exchanging(step: Step) -> Callable[[Batch], None]:
    """Return a forward and backward pass through stems and exchange."""

    def run(batch: Batch) -> None:
        features = step.unwrapped.exchange_features(batch.x)
        torch.autograd.backward(features, [torch.ones_like(h) for h in features])

    return run


def training(step: Step, members: int) -> Callable[[Batch], None]:
    """Return a training step with a new sample in each call."""
    calls = iter(range(10**9))

    def run(batch: Batch) -> None:
        where: dict[str, Any] = {"total": BATCH, "rank": 0, "world": 1, "device": torch.device("cpu")}
        step(batch, STATE, None if step.others is None else uniform_numbers(next(calls), members, **where))

    return run


def peak_memory(run: Callable[[Batch], None], batch: Batch) -> int:
    """Return the peak of the bytes of tensors in a step, above those before it, such as weights."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run(batch)
    return peak_of_tensors(found)


def measure(network: str, exchange: str, case: tuple[int, float, float], rounds: int, steps: int) -> dict[str, Any]:
    """Return the speed of sparse over dense training, and what the number of examples allows."""
    members, rate, least = case
    torch.manual_seed(0)
    data, dense = batches(steps), new_step(network, members, exchange, None)
    candidates = {"dense": training(dense, members)}
    for correction in ("prior", "weight"):
        candidates[correction] = training(
            new_step(network, members, exchange, SampleOthers(rate, correction)),  # type: ignore[arg-type]
            members,
        )
    if exchange != "none":
        candidates["exchange"] = exchanging(dense)
    seconds = in_turn(candidates, data, rounds)

    def of_dense(name: str) -> float:
        return median(own / one for own, one in zip(seconds[name], seconds["dense"], strict=True))

    share = of_dense("exchange") if "exchange" in seconds else 0.0
    expected = 1 / (share + (1 - share) * (1 + (members - 1) * rate) / members)
    speed = {name: round(1 / of_dense(name), 3) for name in ("prior", "weight")}
    target = round(OF_EXPECTED * expected, 3) if exchange != "none" else least
    row = {"network": network, "exchange": exchange, "members": members, "rate": rate, "share": round(share, 3)}
    row |= {
        "milliseconds": {name: round(1e3 * median(each) / steps, 1) for name, each in seconds.items()},
        "speed": speed,
    }
    row |= {"expected": round(expected, 3), "target": target, "met": speed["prior"] >= target}
    row["achieved"] = {name: round(each / expected, 3) for name, each in speed.items()}
    row["memory"] = {name: peak_memory(candidates[name], data[0]) for name in ("dense", *speed)}
    print(f"{network}, {exchange}, M = {members}, r = {rate}: {speed}, of expected {row['achieved']}, target {target}")
    return row


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), help="networks")
    parser.add_argument("--cases", type=int, default=len(CASES), help="number of pairs of members and r")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per candidate")
    parser.add_argument("--steps", type=int, default=4, help="steps per round")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with keep_freed_memory():  # as `torchmcl train` does; otherwise dense steps lose more time to the allocator
        rows = [
            measure(network, exchange, case, given.rounds, given.steps)
            for network in given.networks
            for exchange in ("none", "feature_fusion")
            for case in CASES[: given.cases]
        ]
    results = {"machine": machine.describe(1), "batch": BATCH, "rounds": given.rounds, "rows": rows}
    if given.out:
        atomic.write(given.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

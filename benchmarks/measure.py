"""Candidates in turn, round after round, so that whatever the machine does meanwhile happens to all of them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from driver import Candidate, Failed, Nursery, Slow

SLOW = 2.5  # times the usual slice: a slower candidate is measured in every other round only

DISTURBED = 0.05  # of the machine, used by others: such a slice is measured again,
AGAIN = 3  # times at most, and within the budget

Specs = Mapping[str, tuple[Nursery, dict[str, Any]]]


def measure(
    specs: Specs,
    *,
    budget: float,
    rounds: tuple[int, int] = (3, 9),
    slice: float = 0.4,
    profiled: Sequence[str] = (),
    timeout: float | None = None,
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Time every candidate, for at least and at most so many rounds, as the budget of seconds allows.

    In a round, each runs for a `slice` of seconds, or one step; its first two steps are not counted. Returns for each:
    the `rounds` it ran in, `seconds` of a step in them, the share `outside` of it, the most that `others` took of the
    machine meanwhile, peak `memory` in bytes and, where it was `profiled`, the peak of `tensors` in one more step; and
    what could not be measured, with the reason.
    """
    start = time.monotonic()
    running: dict[str, tuple[Candidate, int]] = {}
    found: dict[str, dict[str, Any]] = {}
    missing = []

    def time_slice(name: str, number: int) -> None:
        candidate, steps = running[name]
        answer = candidate.run(steps)
        for _ in range(AGAIN):
            if answer["others"] < DISTURBED or time.monotonic() - start > budget:
                break
            answer = min(answer, candidate.run(steps), key=lambda one: one["others"])
        found[name]["rounds"].append(number)
        found[name]["others"] = max(answer["others"], found[name].get("others", 0.0))
        found[name]["seconds"].append(answer["seconds"] / answer["steps"])
        found[name]["outside"].append(1 - answer["inside"] / answer["seconds"])
        found[name]["memory"] = answer["memory"]

    takes = {}
    for name, (nursery, spec) in specs.items():
        if free_memory() < 1.3 * max((one["memory"] for one in found.values()), default=0):
            missing.append(f"{name}: too little memory")
            continue
        try:
            candidate = nursery.start(spec, timeout=timeout)
            candidate.run(1, timeout=timeout)
            answer = candidate.run(1, timeout=timeout)
        except (Failed, Slow) as problem:
            missing.append(f"{name}: {str(problem).split('. ')[0]}")
            continue
        steps = max(round(slice / answer["seconds"]), 1)
        takes[name] = steps * answer["seconds"]
        running[name], found[name] = (candidate, steps), {"rounds": [], "seconds": [], "outside": [], "memory": 0}
    slow = {name for name in takes if takes[name] > SLOW * median(takes.values())}
    done = 0
    while running and (
        done < rounds[0] or (done < rounds[1] and time.monotonic() - start + sum(takes.values()) < budget)
    ):
        for name in reversed(running) if done % 2 else running:
            if done % 2 == 0 or name not in slow:
                time_slice(name, done)
        done += 1
    for name in profiled:
        if name in running:
            found[name]["tensors"] = running[name][0].run(1, profile=True)["tensors"]
    for candidate, _ in running.values():
        candidate.stop()
    for one_found in found.values():
        one_found["outside"] = median(one_found["outside"])
    return found, missing


def free_memory() -> float:
    """Bytes that another candidate could have; candidates that wait keep theirs."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), float("inf"))


def ratio(found: Mapping[str, Mapping[str, Any]], name: str, base: str) -> float:
    """How many times as long as the base a candidate takes: the median over the rounds that both ran in.

    >>> slow = {"rounds": [0, 2], "seconds": [2.0, 9.0]}
    >>> ratio({"a": slow, "b": {"rounds": [0, 1, 2], "seconds": [1.0, 7.0, 3.0]}}, "a", "b")
    2.5
    """
    one, other = (dict(zip(found[each]["rounds"], found[each]["seconds"], strict=True)) for each in (name, base))
    return median(one[number] / other[number] for number in one if number in other)


def fastest(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """Which of the names took the least time."""
    there = [name for name in names if name in found]
    return min(there, key=lambda name: median(found[name]["seconds"]), default=None)

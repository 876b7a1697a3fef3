"""Candidates in turn, round after round, so that whatever the machine does meanwhile happens to all of them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from driver import Candidate, Failed, Nursery, Slow

LONG = 2.0  # seconds of a step beyond which its first is as good as any: preparing for a shape takes milliseconds

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

    In a round, each runs for a `slice` of seconds, or one step. Returns for each: `seconds` of a step in each round,
    the share `outside` of it, the most that `others` took of the machine meanwhile, peak `memory` in bytes and, where
    it was `profiled`, the peak of `tensors` in one more step; and what could not be measured, with the reason.
    """
    start = time.monotonic()
    running: dict[str, tuple[Candidate, int]] = {}
    found: dict[str, dict[str, Any]] = {}
    missing = []

    def time_slice(name: str) -> None:
        candidate, steps = running[name]
        answer = candidate.run(steps)
        for _ in range(AGAIN):
            if answer["others"] < DISTURBED or time.monotonic() - start > budget:
                break
            answer = min(answer, candidate.run(steps), key=lambda one: one["others"])
        note(name, answer)

    def note(name: str, answer: dict[str, Any]) -> None:
        found[name]["others"] = max(answer["others"], found[name].get("others", 0.0))
        found[name]["seconds"].append(answer["seconds"] / answer["steps"])
        found[name]["outside"].append(1 - answer["inside"] / answer["seconds"])
        found[name]["memory"] = answer["memory"]

    for name, (nursery, spec) in specs.items():
        if free_memory() < 1.3 * max((one["memory"] for one in found.values()), default=0):
            missing.append(f"{name}: too little memory")
            continue
        try:
            candidate = nursery.start(spec, timeout=timeout)
            candidate.run(1, timeout=timeout)
            answer = candidate.run(1, timeout=timeout)
            steps = max(round(slice / answer["seconds"]), 1)
            running[name], found[name] = (candidate, steps), {"seconds": [], "outside": []}
            if answer["seconds"] > LONG and answer["others"] < DISTURBED:
                note(name, answer)
            else:
                time_slice(name)
        except (Failed, Slow) as problem:
            missing.append(f"{name}: {str(problem).split('. ')[0]}")
    one = sum(steps * found[name]["seconds"][0] for name, (_, steps) in running.items())
    done = 1
    while running and (done < rounds[0] or (done < rounds[1] and time.monotonic() - start + one < budget)):
        for name in reversed(running) if done % 2 else running:
            time_slice(name)
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
    """How many times as long as the base a candidate takes: the median over rounds, each candidate against its round's.

    >>> ratio({"a": {"seconds": [2.0, 6.0, 9.0]}, "b": {"seconds": [1.0, 2.0, 3.0]}}, "a", "b")
    3.0
    """
    pairs = zip(found[name]["seconds"], found[base]["seconds"], strict=True)
    return median(one / other for one, other in pairs)


def fastest(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """Which of the names took the least time."""
    there = [name for name in names if name in found]
    return min(there, key=lambda name: median(found[name]["seconds"]), default=None)

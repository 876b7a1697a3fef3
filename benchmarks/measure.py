"""Measure candidates in turn, in rounds, so that other load on the machine affects all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from driver import Candidate, Failed, Nursery, Slow

SLOW = 2.5  # times the median slice: slower candidates are measured only in every other round

DISTURBED = 0.05  # fraction of the machine used by others, above which a slice is measured again
AGAIN = 3  # repetitions of a disturbed slice, within the budget

Specs = Mapping[str, tuple[Nursery, dict[str, Any]]]


@dataclass
class Running:
    """A started candidate and its measurements."""

    candidate: Candidate
    steps: int  # per slice
    takes: float  # seconds per slice, by its second step
    found: dict[str, Any] = field(default_factory=lambda: {"rounds": [], "seconds": [], "outside": [], "memory": 0})


def measure(
    specs: Specs,
    *,
    budget: float,
    rounds: tuple[int, int] = (3, 9),
    slice: float = 0.4,
    profiled: Sequence[str] = (),
    timeout: float | None = None,
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Time every candidate in a number of rounds between the two given, within the budget of seconds.

    In a round, each candidate runs for `slice` seconds, or one step. Its first two steps are not counted.

    Returns:
        For each candidate, the `rounds` it ran in, the `seconds` per step in them, the fraction of a step `outside` of
        the counted work, the largest fraction of the machine that `others` used, the peak `memory` in bytes and, if
        `profiled`, the peak of `tensors` in one more step; and the candidates that could not be measured, with reasons.
    """
    deadline = time.monotonic() + budget
    running, missing = start_all(specs, slice=slice, timeout=timeout)
    run_rounds(running, rounds, deadline)
    for name in profiled:
        if name in running:
            running[name].found["tensors"] = running[name].candidate.run(1, profile=True)["tensors"]
    for one in running.values():
        one.candidate.stop()
        one.found["outside"] = median(one.found["outside"])
    return {name: one.found for name, one in running.items()}, missing


def start_all(specs: Specs, *, slice: float, timeout: float | None) -> tuple[dict[str, Running], list[str]]:
    """Start every candidate and run its first two steps; return those that run, and why the others do not."""
    running: dict[str, Running] = {}
    missing = []
    for name, (nursery, spec) in specs.items():
        if free_memory() < 1.3 * max((one.found["memory"] for one in running.values()), default=0):
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
        running[name] = Running(candidate, steps, steps * answer["seconds"])
    return running, missing


def run_rounds(running: Mapping[str, Running], rounds: tuple[int, int], deadline: float) -> None:
    """Run rounds[0] rounds, and up to rounds[1] while another is expected to end before the deadline."""
    least, most = rounds
    usual = median(one.takes for one in running.values()) if running else 0.0
    one_round = sum(one.takes for one in running.values())
    done = 0
    while running and (done < least or (done < most and time.monotonic() + one_round < deadline)):
        for name in reversed(running) if done % 2 else running:
            if done % 2 == 0 or running[name].takes <= SLOW * usual:
                time_slice(running[name], done, deadline)
        done += 1


def time_slice(one: Running, number: int, deadline: float) -> None:
    """Measure one slice; a disturbed slice is repeated before the deadline, and the least disturbed one counts."""
    answer = one.candidate.run(one.steps)
    for _ in range(AGAIN):
        if answer["others"] < DISTURBED or time.monotonic() > deadline:
            break
        answer = min(answer, one.candidate.run(one.steps), key=lambda each: each["others"])
    one.found["rounds"].append(number)
    one.found["others"] = max(answer["others"], one.found.get("others", 0.0))
    one.found["seconds"].append(answer["seconds"] / answer["steps"])
    one.found["outside"].append(1 - answer["inside"] / answer["seconds"])
    one.found["memory"] = answer["memory"]


def free_memory() -> float:
    """Return the bytes of free memory; waiting candidates keep theirs."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), float("inf"))


def ratio(found: Mapping[str, Mapping[str, Any]], name: str, base: str) -> float:
    """Return the time of a candidate relative to the base: the median over the rounds that both ran in.

    >>> slow = {"rounds": [0, 2], "seconds": [2.0, 9.0]}
    >>> ratio({"a": slow, "b": {"rounds": [0, 1, 2], "seconds": [1.0, 7.0, 3.0]}}, "a", "b")
    2.5
    """
    one, other = (dict(zip(found[each]["rounds"], found[each]["seconds"], strict=True)) for each in (name, base))
    return median(one[number] / other[number] for number in one if number in other)


def fastest(found: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """Return the fastest of the named candidates."""
    there = [name for name in names if name in found]
    return min(there, key=lambda name: median(found[name]["seconds"]), default=None)


def in_turn(ways: Mapping[str, Callable[[Any], Any]], batches: Sequence[Any], rounds: int) -> dict[str, list[float]]:
    """Time each way to process batches, in the reverse order in every other round.

    Returns:
        The seconds of each way in each round. A first round for warming up is not included.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in sorted(ways, reverse=number % 2 == 0):
            start = time.perf_counter()
            for batch in batches:
                ways[name](batch)
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds

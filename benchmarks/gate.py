"""The gate at which a candidate waits between two steps until the driver requests the next slice."""

import ctypes
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import operators
import torch

SEEN = 0.2  # shortest time in seconds for which load is measured; the kernel counts in hundredths


class Enough(Exception):  # noqa: N818
    """The driver requests no more slices."""


class Gate:
    """Called before each step: let the requested number of steps pass, then report their time.

    Answers are JSON lines: the `seconds` of `steps`, the seconds `inside` the blocks marked with `counted`, the peak
    memory of the process above that before its first step (`memory`, bytes), and the fraction of the machine that
    `others` used meanwhile. A slice with `profile` also reports the peak of allocated `tensors` and the seconds of its
    `parts` by kind of operator.
    """

    def __init__(self, asked: IO[str], said: IO[str]) -> None:
        self.asked, self.said = asked, said
        self.left = self.steps = 0
        self.inside = self.start = self.busy = self.own = 0.0
        self.before: int | None = None
        self.about: dict[str, Any] = {}  # reported before the first step
        self.profile: Any = None

    def __call__(self, steps: int = 1) -> None:
        """Pass now or when the driver requests it; the candidate takes `steps` steps at a time."""
        if self.left <= 0:
            self._pause()
        self.left -= steps
        self.steps += steps

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of the block as `inside`."""
        start = time.perf_counter()
        yield
        self.inside += time.perf_counter() - start

    def say(self, **what: Any) -> None:
        """Answer the driver."""
        self.said.write(json.dumps(what) + "\n")
        self.said.flush()

    def _pause(self) -> None:
        synchronise()
        took = time.perf_counter() - self.start
        if self.before is None:
            forget_peak()
            self.before = peak_memory()
            self.say(ready=True, **self.about)
        else:
            self.say(
                seconds=took,
                steps=self.steps,
                inside=self.inside,
                memory=peak_memory() - self.before,
                others=self._others(took),
                **self._stop_profile(),
            )
        wish = json.loads(self.asked.readline() or '{"stop": true}')
        if wish.get("stop"):
            raise Enough
        self.left, self.steps, self.inside = wish["steps"], 0, 0.0
        if wish.get("profile"):
            self._start_profile()
        self.busy, self.own = busy_seconds(), time.process_time()
        self.start = time.perf_counter()

    def _others(self, took: float) -> float:
        """Return the fraction of the machine that other processes used; 0 if the time is too short to tell."""
        if took < SEEN:
            return 0.0
        busy, own = busy_seconds() - self.busy, time.process_time() - self.own
        return max(busy - own, 0.0) / (took * (os.cpu_count() or 1))

    def _start_profile(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self.profile.__enter__()

    def _stop_profile(self) -> dict[str, Any]:
        if self.profile is None:
            return {}
        self.profile.__exit__(None, None, None)
        profile, self.profile = self.profile, None
        return {"tensors": peak_of_tensors(profile), "parts": operators.table(profile.events())}


def peak_of_tensors(profile: Any) -> int:
    """Return the peak of the bytes of tensors, above those at the start of the profile."""
    events = profile.profiler.kineto_results.events()
    now = peak = 0
    for _, change in sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"):
        now += change
        peak = max(peak, now)
    return peak


def busy_seconds() -> float:
    """Return the busy seconds of all processors since boot, including time stolen by other virtual machines."""
    path = Path("/proc/stat")
    if not path.is_file():
        return time.process_time()  # other processes are not visible
    user, nice, system, _, _, *rest = map(int, path.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def synchronise() -> None:
    """Wait for the GPU if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_memory() -> int:
    """Return the peak memory of this process since `forget_peak` in bytes, or that of the GPU if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    """Return unused memory to the system and reset the peak if the system supports it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")

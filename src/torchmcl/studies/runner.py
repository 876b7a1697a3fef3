"""The embedded runner: what is missing, each run in a process of its own, or one after another in this one.

A runner is any function from specs and a work folder to `Event`s; `run` does the rest, whoever runs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal

from torchmcl._utils import atomic, imports
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.studies import load
from torchmcl.studies.progress import StudyProgress
from torchmcl.studies.scales import scale as scale_of
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, Store


@dataclass(frozen=True)
class Event:
    """Something that happened to a run: it started, again with the reason; it finished, with its result; it failed.

    A runner whose work folders cannot be seen from here tells of `epochs` that were trained.
    """

    spec: Spec
    what: Literal["started", "trained", "finished", "failed"]
    result: Result | None = None
    reason: str = ""
    epochs: int = 0


Runner = Callable[[Sequence[Spec], Path], Generator[Event]]


@dataclass(frozen=True)
class Wanted:
    """A run and the studies that want it."""

    spec: Spec
    studies: tuple[str, ...]


def run(
    names: Sequence[str],
    scale: str,
    *,
    runner: Runner,
    results: str | Path = "results",
    work: str | Path = "runs/studies",
    seeds: int | None = None,
    verbose: bool = True,
) -> int:
    """Run what is missing of some studies -> number of runs that failed. Every result is kept as it comes.

    With `verbose` it shows on the console how runs end; either way these are records of the logger `torchmcl.studies`.
    """
    store = Store(results)
    wanted = missing(names, scale, store, seeds)
    atomic.make_folder(Path(work))
    failed = 0
    specs = [want.spec for want in wanted]
    progress = StudyProgress(specs, Path(work), verbose=verbose)
    with progress, stoppable(), closing(runner(specs, Path(work))) as events:
        for event in events:
            if event.result is not None:
                want = next(want for want in wanted if want.spec.hash == event.spec.hash)
                for study in want.studies:
                    store.write(study, scale, event.spec, event.result)
            failed += event.what == "failed"
            progress.update(event.spec, event.what, event.result, event.reason, event.epochs)
    return failed


def missing(names: Sequence[str], scale: str, store: Store, seeds: int | None = None) -> list[Wanted]:
    """The runs that no study has yet; what another study has is copied. A run that several want is run once, for all.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> len(missing(["ablation"], "smoke", Store(folder))), len(missing(["ablation"] * 2, "smoke", Store(folder)))
    (8, 8)
    """
    found: dict[str, Wanted] = {}
    for name in dict.fromkeys(names):
        for spec in load(name).runs(scale_of(scale, name, seeds=seeds)):
            if store.has(name, scale, spec):
                continue
            if (result := store.find(name, scale, spec)) is not None:
                store.write(name, scale, spec, result)
                continue
            before = found.get(spec.hash, Wanted(spec, ()))
            records = (*before.spec.record, *spec.record)
            found[spec.hash] = Wanted(Spec(spec.options, records), (*dict.fromkeys((*before.studies, name)),))
    return list(found.values())


def here(specs: Sequence[Spec], work: Path) -> Generator[Event]:
    """One after another, in this process."""
    from torchmcl.studies.execute import execute
    from torchmcl.training.signals import Interrupted

    for spec in specs:
        yield Event(spec, "started")
        try:
            yield Event(spec, "finished", execute(spec, work))
        except Interrupted as stopped:
            raise KeyboardInterrupt from stopped
        except TorchmclError as problem:
            yield Event(spec, "failed", reason=str(problem))


def processes(specs: Sequence[Spec], work: Path, *, workers: int) -> Generator[Event]:
    """Each in a process of its own, `workers` at a time, which share the cores evenly.

    When this ends early, they are asked to save and waited for; when it is killed, they end with it.
    """
    waiting, running = deque(specs), dict[Spec, subprocess.Popen[str]]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                spec = waiting.popleft()
                running[spec] = start(spec, work, threads=max((os.cpu_count() or 1) // workers, 1))
                yield Event(spec, "started")
            for spec, process in list(running.items()):
                if process.poll() is not None:
                    process.communicate()
                    del running[spec]
                    yield ended(spec, work, process.returncode)
            time.sleep(0.05)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
            process.communicate()


def start(spec: Spec, work: Path, *, threads: int) -> "subprocess.Popen[str]":
    """Start a run; it lives as long as its standard input is open."""
    result, log = files(spec, work)
    result.unlink(missing_ok=True)
    # `-m` alone would put the current folder first on the path, where a script such as `torchmcl` does not have it.
    alike = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, *alike, "-m", "torchmcl.studies.execute"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C is for the runner, which then asks politely, once
        )
    task = {"options": dict(spec.options), "record": spec.record, "work": str(work), "result": str(result)}
    task["imports"] = imports.loaded()
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it has ended already, and says why
    return process


def ended(spec: Spec, work: Path, code: int) -> Event:
    """What became of a run's process."""
    path, log = files(spec, work)
    if code == 0 and path.is_file():
        result = json.loads(path.read_text())
        path.unlink()
        log.unlink()
        return Event(spec, "finished", result)
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    reason = (
        f"its process ended by signal {-code}" if code < 0 else (said or [f"its process ended with code {code}"])[-1]
    )
    return Event(spec, "failed", reason=reason)


def files(spec: Spec, work: Path) -> tuple[Path, Path]:
    """Where a process leaves its result, and what it complained."""
    return work / f"{spec.hash}.result.json", work / f"{spec.hash}.log"


def embedded(workers: int) -> Runner:
    """The runner for this machine: so many processes at a time, or none but this one."""
    if workers < 0:
        raise UsageError(f"Expected 0 workers or more, got {workers}.")
    return partial(processes, workers=workers) if workers else here


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM ends a study as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

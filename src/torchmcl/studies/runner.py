"""Execution of studies, and the two runners for one machine: `processes` and `in_process`.

A runner is a function that takes specs and a work folder, trains the runs, and yields an `Event` for each change.
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
from typing import Any, Literal

from torchmcl._utils import atomic, imports
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.studies import load, tuning
from torchmcl.studies.progress import StudyProgress
from torchmcl.studies.scales import scale as scale_of
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, Store


@dataclass(frozen=True)
class Event:
    """A change in the status of a run."""

    spec: Spec
    status: Literal["started", "trained", "finished", "failed"]
    result: Result | None = None  # the result of a finished run
    reason: str = ""  # why a run failed or was started again
    epochs: int = 0  # number of trained epochs, reported only by the cluster runner


Runner = Callable[[Sequence[Spec], Path], Generator[Event]]


@dataclass(frozen=True)
class PlannedRun:
    """A run and the studies that need it."""

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
    weights: int = 0,
    verbose: bool = True,
) -> int:
    """Train the missing runs of studies and store each result as soon as it is available.

    Args:
        names: names of studies
        scale: name of the scale
        runner: function that trains the runs, such as `local_runner(2)`
        results: folder for the results
        work: folder for the run folders
        seeds: number of seeds; the default depends on the scale and the study
        weights: number of seeds whose weights are stored next to the results
        verbose: whether to print progress, which is always logged to `torchmcl.studies`

    Returns:
        The number of runs that failed.
    """
    store = Store(results)
    failed, finished = 0, 1
    # A scale with a grid has two rounds: the runs that tune each configuration, and the runs with the chosen settings.
    while finished and not failed:
        finished, planned = 0, {run.spec.hash: run for run in missing(names, scale, store, seeds)}
        specs = [run.spec for run in planned.values()]
        progress = StudyProgress(specs, Path(work), later=later(names, scale, store, seeds), verbose=verbose)
        with closing(train(specs, Path(work), runner, progress)) as events:
            for event in events:
                if event.result is not None:
                    finished += 1
                    for study in planned[event.spec.hash].studies:
                        store.write(study, scale, event.spec, event.result)
                failed += event.status == "failed"
    if weights and not failed:
        store_weights(names, scale, store, Path(work), range(weights))
    return failed


def train(specs: Sequence[Spec], work: Path, runner: Runner, progress: StudyProgress) -> Generator[Event]:
    """Train runs in the folder `work`, and yield each event before its progress is reported.

    SIGTERM stops the runs like Ctrl-C: they save a checkpoint, and KeyboardInterrupt is raised.
    """
    atomic.make_folder(work)
    with progress, interrupt_on_sigterm(), closing(runner(specs, work)) as events:
        for event in events:
            yield event
            progress.update(event.spec, event.status, event.result, event.reason, event.epochs)


def store_weights(names: Sequence[str], scale: str, store: Store, work: Path, seeds: Sequence[int]) -> None:
    """Copy the weights of the runs with the chosen settings and the given seeds from their run folders."""
    from torchmcl.studies import weights

    for name in dict.fromkeys(names):
        size = scale_of(scale, name)
        for spec in tuning.final(load(name).runs(size), size, store.read(name, scale)):
            trained = (work / spec.hash / "model.safetensors").is_file()
            if trained and spec.options["seed"] in seeds and weights.find(store.folder, scale, spec.hash) is None:
                path = store.path(name, scale, spec).with_suffix(weights.SUFFIX)
                weights.write_weights(work / spec.hash, path)
                weights.add_to_list(store.folder, path)


def missing(names: Sequence[str], scale: str, store: Store, seeds: int | None = None) -> list[PlannedRun]:
    """Copy results that another study has stored, and return the distinct runs that still have no result.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> len(missing(["ablation"], "smoke", Store(folder))), len(missing(["ablation"] * 2, "smoke", Store(folder)))
    (8, 8)
    """
    planned: dict[str, PlannedRun] = {}
    for name in dict.fromkeys(names):
        size = scale_of(scale, name, seeds=seeds)
        stored = store.read(name, scale) if size.grid else {}
        specs = load(name).runs(size)
        if not specs:
            raise UsageError(f"The study {name!r} has no runs at the scale {scale}. See: torchmcl study ls")
        for spec in tuning.needed(specs, size, stored):
            if store.has(name, scale, spec):
                continue
            if (result := store.find(name, scale, spec)) is not None:
                store.write(name, scale, spec, result)
                continue
            before = planned.get(spec.hash, PlannedRun(spec, ()))
            merged = Spec(spec.options, (*before.spec.record, *spec.record))
            planned[spec.hash] = PlannedRun(merged, (*dict.fromkeys((*before.studies, name)),))
    return list(planned.values())


def later(names: Sequence[str], scale: str, store: Store, seeds: int | None = None) -> int:
    """Return the number of runs that are known only after the settings have been chosen, as far as it is certain."""
    count = 0
    for name in dict.fromkeys(names):
        size = scale_of(scale, name, seeds=seeds)
        specs, stored = load(name).runs(size), store.read(name, scale) if size.grid else {}
        count += max(0, tuning.number_of_runs(specs, size) - len(list(tuning.needed(specs, size, stored))))
    return count


def in_process(specs: Sequence[Spec], work: Path) -> Generator[Event]:
    """Train runs one after another in this process."""
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
    """Train each run in its own process. Up to `workers` processes run at a time and share the cores evenly.

    If the generator is closed early, it stops the processes and waits until they have saved a checkpoint. If this
    process is killed, the child processes exit as well.
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
                    yield outcome(spec, work, process.returncode)
            time.sleep(0.05)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
            process.communicate()


def start(spec: Spec, work: Path, *, threads: int) -> "subprocess.Popen[str]":
    """Start the process of a run, which exits when its standard input is closed."""
    result, log = result_and_log(spec, work)
    result.unlink(missing_ok=True)
    # python -m puts the current folder first on sys.path; -P prevents this if the folder is not first in this process.
    same_path = [] if sys.path[0] in ("", os.getcwd()) else ["-P"]
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, *same_path, "-m", "torchmcl.studies.execute"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches only the runner, which sends SIGTERM once
        )
    task: dict[str, Any] = {"options": dict(spec.options), "record": spec.record, "name": spec.name}
    task |= {"work": str(work), "result": str(result), "imports": imports.loaded()}
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # the process has already ended, and its log contains the reason
    return process


def outcome(spec: Spec, work: Path, code: int) -> Event:
    """Return the event for a process that has ended."""
    path, log = result_and_log(spec, work)
    if code == 0 and path.is_file():
        result = json.loads(path.read_text())
        path.unlink()
        log.unlink()
        return Event(spec, "finished", result)
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else f"its process ended with code {code}"
    return Event(spec, "failed", reason=f"its process was ended by signal {-code}" if code < 0 else last)


def result_and_log(spec: Spec, work: Path) -> tuple[Path, Path]:
    """Return the paths to which the process of a run writes its result and its errors."""
    return work / f"{spec.hash}.result.json", work / f"{spec.hash}.log"


def local_runner(workers: int) -> Runner:
    """Return a runner that starts up to `workers` processes, or trains in this process if `workers` is 0."""
    if workers < 0:
        raise UsageError(f"Expected workers >= 0, got {workers}.")
    return partial(processes, workers=workers) if workers else in_process


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""The run folder: config.yaml, log.csv, flow.npz, checkpoints/, model.safetensors and metrics.json."""

import csv
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from torchmcl._utils import atomic
from torchmcl._utils.locks import exclusive_lock
from torchmcl.errors import DiskFullError, UsageError, damaged
from torchmcl.serialization import checkpoint

LOG, ASSIGNMENT_HISTORY, LOCK = "log.csv", "flow.npz", ".lock"
RUN_FILES = ("config.yaml", "metrics.json", "model.safetensors", LOG, ASSIGNMENT_HISTORY, "checkpoints", "tensorboard")


def first_process() -> bool:
    """Return whether this process writes to the run folder. The process group need not be initialised."""
    rank = next((os.environ[name] for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if name in os.environ), "0")
    return rank == "0" and os.environ.get("NODE_RANK", "0") == "0"


@dataclass(frozen=True)
class RunFolder:
    """A run folder. `overwrite` replaces an earlier run, `resume` continues it, and `path=None` disables writing."""

    path: Path | None
    overwrite: bool = False
    resume: bool = False

    @property
    def finished(self) -> bool:
        """Whether the run to resume has already finished."""
        return self.resume and self.path is not None and (self.path / "metrics.json").is_file()

    def check(self) -> None:
        """Raise UsageError if the folder is not writable, has files that must be kept, or has no run to resume."""
        folder = self.path
        if folder is None:
            if self.resume:
                raise UsageError("Cannot resume without a run folder. Pass out=….")
            return
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"Cannot write the run to {folder}: the path is a file. Choose another folder with --out.")
        if self.resume and not (folder / "config.yaml").is_file():
            raise UsageError(f"Cannot resume a run in {folder}: config.yaml is missing. Start a run without --resume.")
        if not self.resume and not self.overwrite and folder.exists() and not all(map(_is_leftover, folder.iterdir())):
            raise UsageError(
                f"The folder {folder} is not empty. Continue the run in it with --resume, replace the run with "
                "--overwrite, or choose another folder with --out."
            )
        parent = next(part for part in (folder, *folder.parents) if part.exists())
        if not os.access(parent, os.W_OK):
            raise UsageError(f"Cannot write to {parent}: permission denied. Choose another folder with --out.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other training runs, and check it again once it is locked."""
        if self.path is None or not first_process():
            yield
            return
        atomic.make_folder(self.path)
        with exclusive_lock(self.path / LOCK, wait=False):
            self.check()
            yield

    @contextmanager
    def report_full_disk(self, command: str) -> Iterator[None]:
        """Add the command that resumes the run to the message of a DiskFullError, if there is a run to resume."""
        try:
            yield
        except DiskFullError as problem:
            if self.path is None or not (self.path / "config.yaml").is_file():
                raise
            message = f"Cannot write {problem.filename!r}: {problem.strerror}. Free some disk space and run: {command}"
            raise DiskFullError(message, problem.errno or errno.ENOSPC, problem.filename) from problem

    def start(self, config: dict[str, Any]) -> None:
        """Write the configuration of a new run. If `overwrite` is set, first remove the files of an earlier run."""
        assert self.path is not None
        if self.overwrite:
            for path in (self.path / name for name in RUN_FILES):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        atomic.make_folder(self.path)
        atomic.remove_drafts(self.path)
        if not (self.path / "config.yaml").exists():
            write_config(self.path, config)


def _is_leftover(path: Path) -> bool:
    """Return whether this file could be left over from a process that was killed before it wrote anything."""
    return path.name == LOCK or atomic.is_draft(path)


def check_run_exists(folder: Path) -> None:
    """Raise UsageError if the run folder was removed or replaced during training."""
    if not (folder / "config.yaml").is_file():
        raise UsageError(f"The run in {folder} was removed during training: no config.yaml found. Start the run again.")


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write the resolved configuration to config.yaml."""
    atomic.write(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))


def write_assignment_history(folder: Path, history: Sequence[torch.Tensor]) -> None:
    """Write the numbers of examples that members would take with loss-based assignment, (groups, M) per epoch."""
    atomic.write(folder / ASSIGNMENT_HISTORY, lambda file: np.savez(file, flow=torch.stack(list(history)).numpy()))


def read_assignment_history(folder: Path) -> NDArray[np.float32] | None:
    """Read the number of examples that each member would take with loss-based assignment.

    Returns:
        An array (epochs, groups, M), or None if the run did not store the history.

    Raises:
        DamagedFileError: If the file is damaged.
    """
    path, last = folder / ASSIGNMENT_HISTORY, folder / "checkpoints" / "last.pt"
    if path.is_file():
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
                return content["flow"]
        except Exception as problem:  # zipfile and NumPy raise many kinds of exceptions for damaged bytes
            reason = " ".join(str(problem).split())[:300]
            raise damaged(f"Cannot read {path}: {reason}. Remove the file.", problem) from problem
    # During training, and in runs from earlier versions, the history is only in the checkpoint.
    history = checkpoint.read(last)["at"].get("flow", ()) if last.is_file() else ()
    return torch.stack(list(history)).numpy() if len(history) else None


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read log.csv as one row per epoch, with numbers as floats. If there is no log, return no rows."""
    path = folder / LOG
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: _parse(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def _parse(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def as_json(metrics: dict[str, Any]) -> str:
    """Return metrics as JSON, with each innermost list, such as a row of a matrix, on one line.

    >>> print(as_json({"flags": [[0, 1], [1, 0]]}))
    {
     "flags": [
      [0, 1],
      [1, 0]
     ]
    }
    """
    return re.sub(
        r"\[\s+([^\[\]{}]*?)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", json.dumps(metrics, indent=1)
    )

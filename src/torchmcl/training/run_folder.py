"""The folder of a run: config.yaml, log.csv, flow.npz, checkpoints/, model.safetensors, metrics.json."""

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from torchmcl._utils import atomic
from torchmcl._utils.locks import exclusive_lock
from torchmcl.errors import UsageError, damaged
from torchmcl.serialization import checkpoint

LOG, ASSIGNMENT_HISTORY, LOCK = "log.csv", "flow.npz", ".lock"
RUN_FILES = ("config.yaml", "metrics.json", "model.safetensors", LOG, ASSIGNMENT_HISTORY, "checkpoints", "tensorboard")


def first_process() -> bool:
    """Whether this process is the one that writes, asked before the processes know each other."""
    rank = next((os.environ[name] for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK") if name in os.environ), "0")
    return rank == "0" and os.environ.get("NODE_RANK", "0") == "0"


def inspect_folder(folder: Path | None, *, overwrite: bool, resume: bool) -> None:
    """Refuse to write over a run, or to continue what is none."""
    if folder is None:
        if resume:
            raise UsageError("Expected the folder of the run to continue, got none. Pass out=….")
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"Expected a folder for the run, got the file {folder}. Choose another --out.")
    if resume and not (folder / "config.yaml").is_file():
        raise UsageError(f"Expected a run to continue, with config.yaml in it, got {folder}. Start it without resume.")
    if not resume and not overwrite and folder.exists() and any(not _passing(path) for path in folder.iterdir()):
        raise UsageError(
            f"Expected an empty or new folder for the run, got {folder}, which has files in it. "
            "Continue it with --resume, replace it with --overwrite, or choose another --out."
        )
    parent = next(part for part in (folder, *folder.parents) if part.exists())
    if not os.access(parent, os.W_OK):
        raise UsageError(f"Expected to be allowed to write into {parent}, am not. Choose another --out.")


def _passing(path: Path) -> bool:
    """What a process that was killed may leave before it has written anything."""
    return path.name == LOCK or atomic.is_draft(path)


@contextmanager
def held(folder: Path | None, *, overwrite: bool, resume: bool) -> Iterator[None]:
    """Hold the folder for this training alone, of all processes that train; then look once more what is in it."""
    if folder is None or not first_process():
        yield
        return
    atomic.make_folder(folder)
    with exclusive_lock(folder / LOCK, wait=False):
        inspect_folder(folder, overwrite=overwrite, resume=resume)
        yield


def must_be_there(folder: Path) -> None:
    """Refuse to write into a folder that has gone or is another's by now: what is left of a run could not go on."""
    if not (folder / "config.yaml").is_file():
        raise UsageError(
            f"Expected the run in {folder}, got none: its config.yaml has gone while it trained. Start it again."
        )


def start_folder(folder: Path, config: dict[str, Any], *, overwrite: bool) -> None:
    """Make the run's folder; of an earlier run, only what is a run's is removed."""
    if overwrite:
        for name in RUN_FILES:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    atomic.make_folder(folder)
    atomic.sweep(folder)
    if not (folder / "config.yaml").exists():
        write_config(folder, config)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write config.yaml, the resolved configuration."""
    atomic.write(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))


def write_assignment_history(folder: Path, flow: Sequence[torch.Tensor]) -> None:
    """Keep what members wanted of each class in each epoch, (epochs, groups, M); the archive has a checksum."""
    atomic.write(folder / ASSIGNMENT_HISTORY, lambda file: np.savez(file, flow=torch.stack(list(flow)).numpy()))


def read_assignment_history(folder: Path) -> NDArray[np.float32] | None:
    """What members wanted of each class in each epoch, (epochs, groups, M), or None where nobody kept it.

    Raises:
        DamagedFileError: if the file that holds it is damaged.
    """
    path, last = folder / ASSIGNMENT_HISTORY, folder / "checkpoints" / "last.pt"
    if path.is_file():
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
                return content["flow"]
        except Exception as problem:  # damaged bytes make zip and numpy raise anything
            reason = " ".join(str(problem).split())[:300]
            raise damaged(f"Expected what a training left in {path}, got: {reason}. Remove it.", problem) from problem
    # While it is trained, or where an earlier version trained it, the checkpoint alone has it.
    flow = checkpoint.read(last)["at"].get("flow", ()) if last.is_file() else ()
    return torch.stack(list(flow)).numpy() if len(flow) else None


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows of log.csv, one an epoch, numbers as numbers; none where there is no log."""
    path = folder / LOG
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: number(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def number(text: str) -> float | str:
    """A number where it is one.

    >>> number("0.5"), number("loss-based")
    (0.5, 'loss-based')
    """
    try:
        return float(text)
    except ValueError:
        return text


def as_json(metrics: dict[str, Any]) -> str:
    """Figures for people and programs: one a line, a list or a row of a matrix on one line too.

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

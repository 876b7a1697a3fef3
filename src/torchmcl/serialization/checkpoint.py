"""Checkpoint files, written atomically and verified by their checksums when read."""

import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from torchmcl._utils import atomic
from torchmcl.errors import UsageError, damaged


def write(path: Path, state: dict[str, Any]) -> None:
    """Write a state to a file, completely or not at all."""
    atomic.write(path, lambda file: _put(state, file))


def _put(state: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as problem:
        if isinstance(problem.__context__, OSError):  # such as a full disk, which torch hides
            raise problem.__context__ from problem
        raise


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a state. Reading never executes code from the file.

    Raises:
        DamagedFileError: if the file is damaged or not a checkpoint.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "last.pt"
    >>> write(path, {"epoch": 3})
    >>> read(path)
    {'epoch': 3}
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch writes checksums but does not verify them
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                # A compressed file could expand to any size.
                raise ValueError("it is compressed, unlike files written by torch")
            if changed := archive.testzip():
                raise ValueError(f"checksum mismatch in {changed}")
        state = torch.load(path, weights_only=True, map_location=device)
        if not isinstance(state, dict):
            raise ValueError(f"it contains a {type(state).__name__} instead of a dict")
        return state
    except Exception as problem:  # torch can raise any exception for damaged bytes
        raise load_error(path, problem) from problem


def load_error(path: Path, problem: Exception) -> UsageError:
    """Return the error for a checkpoint that cannot be used because of `problem`.

    If `problem` is a `UsageError`, such as for another run's checkpoint, or a lack of GPU memory, the file is intact.
    """
    reason = str(problem)[:300] or type(problem).__name__
    if isinstance(problem, pickle.UnpicklingError):  # torch's message explains how to load the file unsafely
        reason = "it is damaged, or contains objects other than tensors and plain values"
    message = f"Cannot use the checkpoint {path}: {reason}. Remove the checkpoint to train from the start."
    intact = isinstance(problem, UsageError | torch.OutOfMemoryError)
    return UsageError(message) if intact else damaged(message, problem)

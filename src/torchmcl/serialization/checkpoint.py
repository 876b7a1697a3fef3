"""A checkpoint on the disk: whole or not there, and refused where a single bit of it has changed."""

import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from torchmcl._utils import atomic
from torchmcl.errors import UsageError, damaged


def write(path: Path, state: dict[str, Any]) -> None:
    """Keep a state, whole or not at all."""
    atomic.write(path, lambda file: _put(state, file))


def _put(state: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as problem:
        if isinstance(problem.__context__, OSError):  # such as of a full disk, which torch buries
            raise problem.__context__ from problem
        raise


def read(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read the state back; nothing in the file executes.

    Raises:
        DamagedFileError: if the file is damaged or no checkpoint.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "last.pt"
    >>> write(path, {"epoch": 3})
    >>> read(path)
    {'epoch': 3}
    """
    try:
        with zipfile.ZipFile(path) as archive:  # torch writes checksums, and does not look at them
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is compressed, which torch does not do")  # and may unpack without end
            if changed := archive.testzip():
                raise ValueError(f"the checksum of {changed} does not fit")
        state = torch.load(path, weights_only=True, map_location=device)
        if not isinstance(state, dict):
            raise ValueError(type(state).__name__)
        return state
    except Exception as problem:  # damaged bytes make torch raise anything
        raise refused(path, problem) from problem


def refused(path: Path, problem: object) -> UsageError:
    """The error for a file that is no checkpoint of this run.

    A `UsageError` as the problem means that the checkpoint is whole and the caller asked for something else. A full GPU
    says nothing about the file either.
    """
    line = " ".join(str(problem).split())[:300] or type(problem).__name__
    if isinstance(problem, pickle.UnpicklingError):  # torch would tell how to load it all the same
        line = "damaged, or it asks for more than plain values"
    message = f"Expected a checkpoint of this run, got {path}: {line}. Remove it to train from the start."
    whole = isinstance(problem, UsageError | torch.OutOfMemoryError)
    return UsageError(message) if whole else damaged(message, problem)

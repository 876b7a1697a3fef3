"""Functions that write a file completely or not at all."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from torchmcl.errors import DiskFullError

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})  # a full disk, an exhausted quota


def write(path: Path, content: Callable[[IO[bytes]], object] | str | bytes) -> None:
    """Write text, bytes or a function's output to a draft, which is a temporary file, and rename the draft to `path`.

    Raises DiskFullError if the disk is full.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write(path, "text")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('text', 1)
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with report_full_disk(path):
            with open(draft, "wb") as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
    except OSError as problem:
        problem.filename = str(path)  # users do not know the name of the draft
        raise
    finally:
        with suppress(OSError):  # the folder itself may have been removed
            draft.unlink()


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they do not exist; raise DiskFullError if there is no space left."""
    with report_full_disk(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def report_full_disk(path: Path) -> Iterator[None]:
    """Convert a system error about a full disk to a DiskFullError that contains the name of the file being written.

    >>> with report_full_disk(Path("a.txt")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
        ...
    torchmcl.errors.DiskFullError: Cannot write 'a.txt': No space left on device. Free some disk space and try again.
    """
    try:
        yield
    except OSError as problem:
        if isinstance(problem, DiskFullError) or problem.errno not in NO_SPACE:
            raise
        message = f"Cannot write {str(path)!r}: {problem.strerror}. Free some disk space and try again."
        raise DiskFullError(message, problem.errno, str(path)) from problem


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that killed processes have left in a folder and its subfolders.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / ".note.txt.0a1b2c3d").touch()
    >>> remove_drafts(folder)
    >>> list(folder.iterdir())
    []
    """
    for path in folder.rglob(".*"):
        if is_draft(path):
            path.unlink(missing_ok=True)


def is_draft(path: Path) -> bool:
    """Return whether a file has the name of a draft.

    >>> is_draft(Path(".note.txt.0a1b2c3d")), is_draft(Path("note.txt"))
    (True, False)
    """
    return re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name) is not None

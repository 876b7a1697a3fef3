"""Files that are written completely or not at all."""

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


def write(path: Path, put: Callable[[IO[bytes]], object] | str | bytes) -> None:
    """Write a file whole or not at all: under another name beside it, then renamed.

    Raises:
        DiskFullError: if the disk or the quota is full.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write(path, "whole")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('whole', 1)
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with full_disk_named(path):
            with open(draft, "wb") as file:
                if callable(put):
                    put(file)
                else:
                    file.write(put.encode() if isinstance(put, str) else put)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
    except OSError as problem:
        problem.filename = str(path)  # the draft's name means nothing to people
        raise
    finally:
        with suppress(OSError):  # the folder itself may have gone
            draft.unlink()


def make_folder(path: Path) -> None:
    """Make a folder and its parents, where they do not exist.

    Raises:
        DiskFullError: if the disk or the quota is full.
    """
    with full_disk_named(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Raise DiskFullError where `path` is written to a full disk; the system's own error does not name the file.

    >>> with full_disk_named(Path("a.txt")):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
        ...
    torchmcl.errors.DiskFullError: Cannot write 'a.txt': No space left on device. Free some disk space and try again.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as problem:
        if problem.errno not in NO_SPACE:
            raise
        raise DiskFullError(
            f"Cannot write {str(path)!r}: {problem.strerror}. Free some disk space and try again.",
            problem.errno,
            str(path),
        ) from problem


def sweep(folder: Path) -> None:
    """Remove drafts that a killed process left in a folder and below.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / ".note.txt.0a1b2c3d").touch()
    >>> sweep(folder)
    >>> list(folder.iterdir())
    []
    """
    for path in folder.rglob(".*"):
        if is_draft(path):
            path.unlink(missing_ok=True)


def is_draft(path: Path) -> bool:
    """Whether a file is one that is being written, or never was to the end.

    >>> is_draft(Path(".note.txt.0a1b2c3d")), is_draft(Path("note.txt"))
    (True, False)
    """
    return re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name) is not None

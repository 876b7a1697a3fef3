import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO
from uuid import uuid4


def write(path: Path, put: Callable[[IO[bytes]], object] | str | bytes) -> None:
    """Write a file whole or not at all: under another name beside it, then renamed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write(path, "whole")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('whole', 1)
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex[:8]}")
    try:
        with open(draft, "wb") as file:
            if callable(put):
                put(file)
            else:
                file.write(put.encode() if isinstance(put, str) else put)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as problem:
        problem.filename = str(path)  # which a full disk does not say, and the draft's means nothing to people
        raise
    finally:
        with suppress(OSError):  # the folder itself may have gone
            draft.unlink()


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

"""One process at a time in a place: a lock that the system takes back when its holder ends, however it ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torchmcl.errors import UsageError

_held: dict[int, Path] = {}  # by descriptor


@contextmanager
def alone(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file, removed in the end; while another process holds it, wait, or refuse in one line.

    Where files cannot be locked, nobody waits and nobody is refused.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with alone(path):
    ...     path.read_text() == str(os.getpid())
    True
    >>> path.exists()
    False
    """
    descriptor = _take(path, wait=wait)
    _held[descriptor] = path
    try:
        yield
    finally:
        if _held.pop(descriptor, None) is not None:  # else this is a fork of the holder
            with suppress(OSError):  # the place itself may have gone
                path.unlink()
            os.close(descriptor)


def _take(path: Path, *, wait: bool) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, path, wait=wait)
            if _same(descriptor, path):
                with suppress(OSError):  # a full disk; the number is for people alone
                    os.truncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever held it has removed it: there may be another by now


def _lock(descriptor: int, path: Path, *, wait: bool) -> None:
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as busy:
        number = os.read(descriptor, 20).decode(errors="replace") or "another"
        raise UsageError(
            f"Expected {path.parent} for this process alone, got process {number} at work in it. "
            "Wait until it ends, or choose another folder."
        ) from busy
    except OSError:
        return  # a file system without locks


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """A forked process, such as one that reads images, must not hold the lock when its parent is gone."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)

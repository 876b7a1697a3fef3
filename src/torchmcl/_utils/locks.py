"""A lock that lets one process at a time use a folder.

`filelock` works on Unix and Windows. The system releases the lock when its holder ends, even if it is killed. A forked
process, such as a data loader's worker, closes its copy and cannot keep the lock of its parent.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from torchmcl.errors import UsageError

# Raised by file systems that cannot lock: NFS without a lock daemon, Lustre without `-o flock`, some FUSE file systems.
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


@contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file and remove it at the end; threads of one process exclude each other too.

    Raises UsageError if `wait` is False and another process holds the lock. On file systems without locks, this
    context does nothing. filelock's fallback, a file whose existence is the lock, would survive a killed process and
    prevent another machine from resuming its run.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / ".lock"
    >>> with exclusive_lock(path):
    ...     path.read_text() == str(os.getpid())
    True
    >>> path.exists()
    False
    """
    lock = FileLock(path, blocking=wait, fallback_to_soft=False, on_acquired=partial(_sign, path))
    _acquire(lock, path)
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:  # otherwise, a forked child of the holder is leaving this block
            # filelock leaves the file on Unix, where it would look like a part of the run. It is removed while it is
            # locked; `_sign` detects this in a process that opened it before. On Windows, filelock removes it.
            with suppress(OSError):
                path.unlink()
            lock.release()


def _acquire(lock: FileLock, path: Path) -> None:
    while not lock.is_locked:
        try:
            lock.acquire()
        except Timeout as busy:
            raise UsageError(
                f"{path.parent} is in use by {_holder(path)}. Wait until it ends, or choose another folder."
            ) from busy
        except OSError as problem:
            if problem.errno in NO_LOCKS:
                return
            if not isinstance(problem, FileNotFoundError) or not path.parent.is_dir():
                raise


def _sign(path: Path, descriptor: int) -> None:
    # filelock checks the number of links, which NFS does not decrease for a removed file that is still open.
    if os.name == "posix" and not os.path.samestat(os.fstat(descriptor), os.stat(path)):
        raise FileNotFoundError(path)
    with suppress(OSError):  # such as a full disk; the number is only for the message
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())


def _holder(path: Path) -> str:
    with suppress(OSError):  # it has been removed in the meantime; on Windows the lock excludes readers
        if number := path.read_bytes()[:20].decode(errors="replace"):
            return f"process {number}"
    return "another process"

"""A lock that lets one process at a time use a folder.

`filelock` works on Unix and Windows. The system releases the lock when the process that holds it ends or is killed. A
forked process, such as a data loader's worker, closes its copy of the lock and cannot keep the lock of its parent.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from torchmcl.errors import UsageError

# Errors of file systems without locks: NFS without a lock daemon, Lustre without `-o flock`, some FUSE file systems.
NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})


@contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock file and remove it at the end; the lock also excludes other threads of the same process.

    Raises UsageError if `wait` is False and another process holds the lock. On file systems without locks, this
    context does nothing. filelock's fallback, which treats the existence of a file as the lock, is not used, because
    the file of a killed process would prevent another machine from resuming the run.

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
            # On Unix, filelock would leave the file in the folder, where it would look like a part of the run. The file
            # is removed while it is locked; in a process that has already opened it, `_sign` detects the removal. On
            # Windows, filelock removes the file.
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
    # filelock's own check for a removed file counts links, but NFS does not decrease this count while the file is open.
    if os.name == "posix" and not os.path.samestat(os.fstat(descriptor), os.stat(path)):
        raise FileNotFoundError(path)
    with suppress(OSError):  # such as a full disk; the process id is used only in an error message
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())


def _holder(path: Path) -> str:
    with suppress(OSError):  # the file may have been removed; on Windows, a locked file cannot be read
        if number := path.read_bytes()[:20].decode(errors="replace"):
            return f"process {number}"
    return "another process"

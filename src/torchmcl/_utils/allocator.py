import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's mallopt
USUAL = {TRIM_THRESHOLD: 128 * 1024, MMAP_MAX: 65536}
KEEPING = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}


@contextmanager
def memory_kept() -> Iterator[None]:
    """Let the C library keep freed memory for the next tensor, in work on the CPU that allocates the same again.

    glibc returns every block of 32 MB or more to the kernel, which clears it page by page when it is needed again one
    step later. Here it is kept until the end, at the price of its peak being held meanwhile. The setting belongs to the
    process and cannot be read back, so that only commands of torchmcl, which own their process, change it by
    themselves. With another C library nothing is done.

    >>> with memory_kept():
    ...     pass
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    try:
        for option, value in KEEPING.items():
            libc.mallopt(option, value)
        yield
    finally:
        for option, value in USUAL.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)

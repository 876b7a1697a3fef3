import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's mallopt
USUAL = {TRIM_THRESHOLD: 128 * 1024, MMAP_MAX: 65536}
KEEPING = {TRIM_THRESHOLD: -1, MMAP_MAX: 0}


_inside = 0  # how many of these contexts are open


@contextmanager
def memory_kept(device: torch.device) -> Iterator[None]:
    """Let the C library keep freed memory for the next tensor, in work on the CPU that allocates the same again.

    glibc hands every block of 32 MB or more back to the kernel and has it cleared, page by page, when it is needed
    again a step later. Here it is kept until the end, at the price of its peak being held meanwhile. On another device
    or with another C library nothing is done.

    >>> with memory_kept(torch.device("cpu")):
    ...     pass
    """
    global _inside
    if device.type != "cpu" or platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    _inside += 1
    try:
        for option, value in KEEPING.items():
            libc.mallopt(option, value)
        yield
    finally:
        _inside -= 1
        if not _inside:
            for option, value in USUAL.items():
                libc.mallopt(option, value)
            libc.malloc_trim(0)

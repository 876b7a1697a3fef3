import os

from torchmcl.errors import UsageError


def available_memory() -> int:
    """Return the number of bytes that this process may use: the machine's memory, or the process's limit if lower."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):  # Windows provides neither value; there, torch raises its own error
        return 2**63
    return physical if limit == resource.RLIM_INFINITY else min(limit, physical)


def check_memory(what: str, size: int) -> None:
    """Raise UsageError if `size` bytes exceed the available memory; the system itself might not reject the allocation.

    >>> check_memory("an array", 10**18)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Not enough memory for an array: 1000000000.0 GB needed, ... GB available.
    """
    if size > (available := available_memory()):
        needed = f"{size / 1e9:.1f} GB needed, {available / 1e9:.1f} GB available"
        raise UsageError(f"Not enough memory for {what}: {needed}.")

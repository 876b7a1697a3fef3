import os

from torchmcl.errors import UsageError


def available_memory() -> int:
    """Bytes of memory that this process may have: the machine's, or what a limit on the process leaves of it."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):  # Windows tells neither: torch itself refuses there
        return 2**63
    return whole if limit == resource.RLIM_INFINITY else min(limit, whole)


def check_memory(what: str, size: int) -> None:
    """Refuse what needs more bytes than there is memory, before any is taken: systems promise more than they have.

    >>> check_memory("an array", 10**18)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected what fits into ... GB of memory, got an array of 1000000000.0 GB.
    """
    if size > (there := available_memory()):
        raise UsageError(f"Expected what fits into {there / 1e9:.1f} GB of memory, got {what} of {size / 1e9:.1f} GB.")

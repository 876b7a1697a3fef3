import os
from collections.abc import Sequence
from pathlib import Path

from torchmcl.errors import DamagedFileError, UsageError

VARIABLE = "TORCHMCL_DATA"


def cache() -> Path:
    """The user's cache, where downloads go."""
    import pooch

    return Path(pooch.os_cache("torchmcl"))


def places(directory: str | os.PathLike[str] | None = None) -> list[Path]:
    """Where data is looked for, in this order: `directory`, the folder TORCHMCL_DATA names, the user's cache."""
    if directory is not None and not Path(directory).expanduser().is_dir():
        raise UsageError(f"Expected a folder of data, got {os.fspath(directory)!r}, which is none.")
    named = (directory, os.environ.get(VARIABLE) or None)
    return [*(Path(place).expanduser() for place in named if place is not None), cache()]


def find(names: Sequence[str], directory: str | os.PathLike[str] | None = None) -> Path | None:
    """The first of these files or folders that is in one of the `places`, or is such a place itself.

    >>> import tempfile
    >>> data = Path(tempfile.mkdtemp())
    >>> (data / "cifar-10-batches-py").mkdir()
    >>> find(["cifar-10-batches-bin", "cifar-10-batches-py"], data).name
    'cifar-10-batches-py'
    """
    for place in places(directory):
        for name in names:
            if (place / name).exists():
                return place / name
            if place.name == name and place.is_dir():
                return place
    return None


def missing(names: Sequence[str], directory: str | os.PathLike[str] | None, reason: str) -> UsageError:
    """An error that says what was looked for, where, and what to do."""
    looked = ", ".join(str(place) for place in places(directory))
    return UsageError(
        f"Expected {' or '.join(names)} in one of {looked}, found none; {reason} "
        f"Put it into one of these, or name its folder in {VARIABLE}."
    )


def whole(path: Path, most: int) -> Path:
    """Refuse a file that is missing, empty or larger than its kind ever is, before anything is read of it."""
    if not path.is_file():
        raise UsageError(f"Expected the file {path}, there is none.")
    size = path.stat().st_size
    if not 0 < size <= most:
        raise DamagedFileError(f"Expected 1 to {most} bytes in {path}, got {size}. Get it again.")
    return path

import os
from collections.abc import Sequence
from pathlib import Path

from torchmcl.errors import DamagedFileError, UsageError

VARIABLE = "TORCHMCL_DATA"


def cache() -> Path:
    """Return the user's cache folder, which stores downloads."""
    import pooch

    return Path(pooch.os_cache("torchmcl"))


def data_folders(directory: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders to search for data, in order: `directory`, the folder in TORCHMCL_DATA, the user's cache."""
    if directory is not None and not Path(directory).expanduser().is_dir():
        raise UsageError(f"The data folder {os.fspath(directory)!r} does not exist. Create it or correct the path.")
    given = (directory, os.environ.get(VARIABLE) or None)
    return [*(Path(folder).expanduser() for folder in given if folder is not None), cache()]


def find(names: Sequence[str], directory: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the first match for `names` in the data folders (a data folder itself can also match), or else None."""
    for folder in data_folders(directory):
        for name in names:
            if (folder / name).exists():
                return folder / name
            if folder.name == name and folder.is_dir():
                return folder
    return None


def not_found(names: Sequence[str], directory: str | os.PathLike[str] | None, reason: str) -> UsageError:
    """Return an error that lists the names and the searched folders, and explains what to do."""
    folders = ", ".join(map(str, data_folders(directory)))
    return UsageError(
        f"Cannot find {' or '.join(names)} in {folders}, and {reason}. "
        f"Put the data into one of these folders, or set {VARIABLE} to the folder that contains the data."
    )


def check_file(path: Path, max_bytes: int) -> Path:
    """Return the path of a file; raise UsageError if it is missing, empty or larger than `max_bytes`."""
    if not path.is_file():
        raise UsageError(f"The file {path} does not exist. Check the path, or download the data again.")
    size = path.stat().st_size
    if not 0 < size <= max_bytes:
        raise DamagedFileError(f"Expected 1 to {max_bytes} bytes in {path}, got {size}. Download the file again.")
    return path

import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl._utils.memory_limit import check_memory
from torchmcl.data.arrays import from_arrays
from torchmcl.data.examples import DataSet
from torchmcl.data.find import check_file
from torchmcl.errors import DamagedFileError, UsageError, damaged

MAX_BYTES = 8 * 1024**3  # the limit for the unpacked arrays
NAMES = ("x", "y", "x_test", "y_test")


def load(path: str, parts: Sequence[str] = ("train", "test"), *, seed: int = 0) -> DataSet:
    """Load a file written by `numpy.savez` with x, y and optionally x_test and y_test; see `from_arrays`."""
    arrays = read(check_file(Path(path).expanduser(), MAX_BYTES))
    x, y, x_test, y_test = map(arrays.get, NAMES)
    try:
        made = from_arrays(x, y, x_test, y_test, seed=seed, name=f"npz:{path}")
    except UsageError as error:
        raise UsageError(f"In {path}: {error}") from error
    return DataSet(made.name, {part: made.parts[part] for part in parts}, made.preprocess, made.choices)


def read(file: Path, *, labelled: bool = True) -> dict[str, NDArray[Any]]:
    """Read the arrays x, y, x_test and y_test, or only x if not `labelled`, without executing code from the file."""
    names = NAMES if labelled else ("x",)
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            arrays = {name: members[name] for name in names if name in members}
            if arrays.keys() not in ({*names[:2]}, {*names}):
                expected = "x and y, and optionally both x_test and y_test," if labelled else "an array x"
                raise UsageError(f"Expected {expected} in {file}, got {sorted(members)[:10]}.")
            size = sum(info.file_size for info in arrays.values())
            if size > MAX_BYTES:
                raise UsageError(f"Expected at most {MAX_BYTES} bytes of arrays in {file}, got {size}.")
            check_memory(str(file), size)
            for name, info in arrays.items():
                _check(archive, info, name, file)
        with np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in arrays}
    except UsageError:
        raise
    except Exception as error:  # zipfile and NumPy raise many kinds of exceptions for damaged bytes
        raise damaged(f"Cannot read {file} ({type(error).__name__}). Write it with numpy.savez.", error) from error


def peek(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the kind of numbers, such as "f" or "i", of each array without reading the arrays.

    The result is empty if the file cannot be read; `read` then reports the reason.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            found = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            headers = {name: _header(archive, found[name]) for name in NAMES if name in found}
        return {name: (shape, kind.kind) for name, (shape, kind, _) in headers.items()}
    except Exception:  # zipfile and NumPy raise many kinds of exceptions for damaged bytes
        return {}


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return the shape and type of an array and the length of its header."""
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = header(stream)
        return shape, kind, stream.tell()


def _check(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, file: Path) -> None:
    """Check the declared shape and type of an array against its size before memory is allocated."""
    shape, kind, start = _header(archive, info)
    if kind.hasobject:
        raise UsageError(f"Expected numbers or strings in {name} of {file}, got unsafe Python objects.")
    if prod(shape) * kind.itemsize != info.file_size - start:
        raise DamagedFileError(f"The size of {name} in {file} does not match its shape {shape}. Save the file again.")

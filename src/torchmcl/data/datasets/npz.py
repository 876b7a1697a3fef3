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
from torchmcl.data.find import whole
from torchmcl.errors import DamagedFileError, UsageError, damaged

MOST = 8 * 1024**3  # bytes of arrays, unpacked
NAMES = ("x", "y", "x_test", "y_test")


def load(path: str, parts: Sequence[str] = ("train", "test"), *, seed: int = 0) -> DataSet:
    """A file that numpy.savez wrote, with x, y and optionally x_test, y_test; see `from_arrays`."""
    file = Path(path).expanduser()
    arrays = read(whole(file, MOST))
    x, y, x_test, y_test = map(arrays.get, NAMES)
    try:
        made = from_arrays(x, y, x_test, y_test, seed=seed, name=f"npz:{path}")
    except UsageError as error:
        raise UsageError(f"{error} It is in {path}.") from error
    return DataSet(made.name, {part: made.parts[part] for part in parts}, made.preprocess, made.choices)


def read(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays x, y, x_test and y_test in it; nothing in the file is executed."""
    try:
        with zipfile.ZipFile(file) as archive:
            there = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = {name: there[name] for name in NAMES if name in there}
            if wanted.keys() not in ({"x", "y"}, set(NAMES)):
                raise UsageError(
                    f"Expected arrays x and y, and x_test and y_test or neither, in {file}, got {sorted(there)[:10]}."
                )
            if sum(info.file_size for info in wanted.values()) > MOST:
                raise UsageError(f"Expected at most {MOST} bytes of arrays in {file}, it would unpack to more.")
            check_memory(str(file), sum(info.file_size for info in wanted.values()))
            for name, info in wanted.items():
                _check(archive, info, name, file)
        with np.load(file, allow_pickle=False) as content:
            return {name: content[name] for name in wanted}
    except UsageError:
        raise
    except Exception as error:  # damaged bytes make zip and numpy raise anything
        raise damaged(
            f"Expected a whole file of numpy.savez, got {file}, which cannot be read ({type(error).__name__}).", error
        ) from error


def _check(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, file: Path) -> None:
    """Compare what an array says of itself with its bytes, before memory is taken for it."""
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = header(stream)
        if kind.hasobject:
            raise UsageError(f"Expected numbers or texts in {name} of {file}, got Python objects, which may do harm.")
        if prod(shape) * kind.itemsize != info.file_size - stream.tell():
            raise DamagedFileError(f"Expected {name} of shape {shape} in {file}, it has another number of bytes.")

"""Reading of examples from files given on a command line: images, or tables with one example per row.

A table is a CSV file with numbers, with or without a header, or an .npz file with an array x.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.datasets import npz
from torchmcl.data.find import check_file
from torchmcl.data.folder_check import readable_images
from torchmcl.errors import UsageError

EXTENSIONS = (".csv", ".npz")


def examples(files: Sequence[str | Path], *, skip_unreadable: bool = False) -> tuple[Any, list[dict[str, Any]]]:
    """Return examples that `Specialists.predict` accepts, and a dictionary for each that tells where it is from.

    A folder stands for the images in it and in its subfolders. With `skip_unreadable`, those that cannot be read are
    left out with a warning.

    Raises:
        UsageError: if tables and images are mixed, a table or an image of a folder cannot be read, or there is none.
    """
    files = [image for file in files for image in _images(file, skip_unreadable)]
    paths = [Path(file) for file in files]
    are_tables = [path.suffix.lower() in EXTENSIONS for path in paths]
    if not any(are_tables):
        return list(files), [{"image": str(file)} for file in files]
    if not all(are_tables):
        raise UsageError("Cannot predict images and tables at the same time. Predict them separately.")
    arrays = [read_table(path) for path in paths]
    widths = {array.shape[1:] for array in arrays}
    if len(widths) > 1:
        raise UsageError(f"Expected tables with the same columns, got shapes {', '.join(map(str, sorted(widths)))}.")
    rows = [{"file": str(path), "row": i} for path, x in zip(paths, arrays, strict=True) for i in range(1, len(x) + 1)]
    return np.concatenate(arrays), rows


def _images(file: str | Path, skip_unreadable: bool) -> list[str | Path]:
    """Return the images in a folder, or a file itself."""
    if not Path(file).expanduser().is_dir():
        return [file]
    if not (images := readable_images(file, skip_unreadable=skip_unreadable)):
        raise UsageError(f"There are no readable images in the folder {file}. Pass images, or another folder.")
    return list(images)


def read_table(path: Path) -> NDArray[Any]:
    """Read a table (N, …) of numbers without executing code from the file."""
    path = check_file(path.expanduser(), npz.MAX_BYTES)
    table = npz.read(path, labelled=False)["x"] if path.suffix.lower() == ".npz" else _read_csv(path)
    if table.ndim < 2 or not len(table) or table.dtype.kind not in "biuf":
        raise UsageError(f"Expected numbers (N, D) in {path}, got {table.dtype} {table.shape}.")
    if not (finite := np.isfinite(table).reshape(len(table), -1).all(1)).all():
        row = int(finite.argmin()) + 1
        raise UsageError(f"Expected finite numbers in {path}, got NaN or infinity in row {row}. Replace them.")
    return table


def _read_csv(path: Path) -> NDArray[np.float32]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(csv.reader(file), start=1) if any(line)]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise UsageError(f"Cannot read {path} as CSV: {problem}.") from problem
    if lines and not _is_number(lines[0][1][0]):  # a header
        lines = lines[1:]
    if not lines:
        raise UsageError(f"Expected at least one row of numbers in {path}, got none.")
    width = len(lines[0][1])
    for number, line in lines:
        if len(line) != width:
            raise UsageError(f"Expected {width} columns in line {number} of {path}, got {len(line)}.")
        if wrong := [cell for cell in line if not _is_number(cell)]:
            raise UsageError(f"Expected numbers in line {number} of {path}, got {wrong[0][:50]!r}.")
    return np.array([[float(cell) for cell in line] for _, line in lines], dtype=np.float32)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

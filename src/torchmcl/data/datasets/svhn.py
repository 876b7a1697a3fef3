from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.matlab import read_matlab
from torchmcl.errors import DamagedFileError

MAX_BYTES = 600_000 * 3100  # the limit per file; the largest file, "extra", has 531,131 images


def load(directory: str | None = None, parts: Sequence[str] = ("train", "test")) -> DataSet:
    """Load the cropped digits of Street View House Numbers (Netzer et al., 2011), (N, 3, 32, 32) uint8."""
    files = {part: obtain([f"svhn/{part}_32x32.mat", f"{part}_32x32.mat"], directory) for part in parts}
    return DataSet("svhn", {part: read(path) for part, path in files.items()})


def read(path: Path) -> Examples:
    """Read a MATLAB file with X (32, 32, 3, N) and y (N, 1), in which the digit 0 has the label 10."""
    content = read_matlab(path, max_bytes=MAX_BYTES)
    pixels, label = content.get("X", np.empty(0)), content.get("y", np.empty(0))
    if pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3) or not 0 < pixels.shape[3] == label.size:
        got = f"{pixels.shape} and {label.shape}"
        raise DamagedFileError(f"Expected X (32, 32, 3, N) and y (N, 1) in {path}, got {got}. Download the file again.")
    if pixels.dtype != np.uint8 or not np.isin(label, np.arange(1, 11)).all():
        raise DamagedFileError(f"In {path}, X is not uint8 or y has values outside 1 to 10. Download the file again.")
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Examples(images, torch.from_numpy(label.ravel().astype(np.int64) % 10), tuple("0123456789"))

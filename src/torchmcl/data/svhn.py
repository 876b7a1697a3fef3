from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.find import whole
from torchmcl.errors import UsageError

MOST = 600_000  # images of one file: its largest, "extra", has 531,131


def load(directory: str | None = None, parts: Sequence[str] = ("train", "test")) -> DataSet:
    """Street view house numbers of Netzer et al. 2011, cropped digits, (N, 3, 32, 32) uint8."""
    files = {part: obtain([f"svhn/{part}_32x32.mat", f"{part}_32x32.mat"], directory) for part in parts}
    return DataSet("svhn", {part: read(path) for part, path in files.items()})


def read(path: Path) -> Examples:
    """A MATLAB file of X (32, 32, 3, N) and y (N, 1), in which the digit 0 is labelled 10."""
    from scipy.io import loadmat, whosmat

    whole(path, MOST * 3100)
    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        _check(path, shapes)
        content = loadmat(path, variable_names=["X", "y"])
        pixels, label = np.asarray(content["X"]), np.asarray(content["y"]).ravel()
    except UsageError:
        raise
    except Exception as error:  # damaged bytes make the reader raise anything
        raise UsageError(
            f"Expected a whole MATLAB file, got {path}, which cannot be read ({type(error).__name__}). Get it again."
        ) from error
    if pixels.dtype != np.uint8 or not np.isin(label, np.arange(1, 11)).all():
        raise UsageError(f"Expected bytes X and labels y from 1 to 10 in {path}, got others. Get it again.")
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Examples(images, torch.from_numpy(label.astype(np.int64) % 10), tuple("0123456789"))


def _check(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuse what the file says it holds before memory is taken for it."""
    x, y = shapes.get("X", ()), shapes.get("y", ())
    if len(x) != 4 or x[:3] != (32, 32, 3) or y not in ((x[3], 1), (1, x[3])) or not 0 < x[3] <= MOST:
        raise UsageError(f"Expected X (32, 32, 3, N) and y (N, 1) in {path}, got {x} and {y}. Get it again.")

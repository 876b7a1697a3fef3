import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def to_rgb(image: Tensor | NDArray[np.generic]) -> NDArray[np.uint8]:
    """Convert an image (C, H, W) to uint8 (H, W, 3). If the image is not uint8, its value range is scaled to 0..255.

    >>> import torch
    >>> to_rgb(torch.tensor([[[-1.0, 1.0]]]))[0, :, 0]
    array([  0, 255], dtype=uint8)
    """
    values = np.asarray(image)
    if values.dtype != np.uint8:
        low, high = float(values.min()), float(values.max())
        values = (255 * (values - low) / max(high - low, 1e-12)).round().astype(np.uint8)
    if values.shape[0] != 3:
        values = np.repeat(values[:1], 3, axis=0)
    return np.ascontiguousarray(values.transpose(1, 2, 0))

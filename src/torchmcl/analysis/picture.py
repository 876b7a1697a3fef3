import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def picture(image: Tensor | NDArray[np.generic]) -> NDArray[np.uint8]:
    """An image (C, H, W) for people: (H, W, 3) bytes; numbers that are no bytes are stretched from least to most.

    >>> import torch
    >>> picture(torch.tensor([[[-1.0, 1.0]]]))[0, :, 0]
    array([  0, 255], dtype=uint8)
    """
    values = np.asarray(image)
    if values.dtype != np.uint8:
        low, high = float(values.min()), float(values.max())
        values = (255 * (values - low) / max(high - low, 1e-12)).round().astype(np.uint8)
    if values.shape[0] != 3:
        values = np.repeat(values[:1], 3, axis=0)
    return np.ascontiguousarray(values.transpose(1, 2, 0))

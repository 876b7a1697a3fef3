from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from torch.nn import functional as F

from torchmcl._utils.memory_limit import check_memory
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.strata import train_test_split

INK = 128  # pixels with at least this value are ink


def load(parts: Sequence[str] = ("train", "test")) -> DataSet:
    """Load scikit-learn's 1,797 handwritten digits, (N, 1, 8, 8) uint8, with values scaled from 0-16 to 0-255.

    The test set is a fifth of each class, chosen with a fixed seed, so the split is the same in every run.

    >>> load().test
    Examples(359 of (1, 8, 8), 10 classes)
    """
    from sklearn.datasets import load_digits

    pixels, label = load_digits(return_X_y=True)
    images = torch.from_numpy(np.rint(pixels * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8)
    digits = Examples(images, torch.from_numpy(label.astype(np.int64)), tuple("0123456789"))
    split = train_test_split(digits.target, seed=0)
    choices = {"split": "a fifth of each class held out for testing, by seed 0"}
    return DataSet("digits", {part: digits.subset(split[part]) for part in parts}, preprocess="scale", choices=choices)


def masks(parts: Sequence[str] = ("train", "test"), size: tuple[int, int] | None = None) -> DataSet:
    """Load the digits for segmentation: masks (N, 8, 8) with the classes paper and ink, grouped by digit.

    Images and masks are resized to `size`, if given, by nearest-neighbor interpolation.

    >>> masks().test.target.shape, masks().test.groups[:2]
    (torch.Size([359, 8, 8]), ('0', '1'))
    """
    data, made = load(parts), {}
    for part, examples in data.parts.items():
        images = examples.images[torch.arange(len(examples))]
        if size is not None:
            check_memory("digits-masks", len(images) * prod(size))
            images = F.interpolate(images, size)
        ink = (images[:, 0] >= INK).to(torch.uint8)
        made[part] = Examples(images, ink, ("paper", "ink"), examples.target, examples.classes)
    return DataSet("digits-masks", made, preprocess=data.preprocess, choices=data.choices)

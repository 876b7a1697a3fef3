from collections.abc import Sequence

import numpy as np
import torch

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.strata import Purpose, hold_out

INK = 128


def load(parts: Sequence[str] = ("train", "test")) -> DataSet:
    """scikit-learn's 1,797 real digits, (N, 1, 8, 8) uint8: 0 to 16 of the original as 0 to 255.

    A fifth of each class is the test set, chosen by a seed that is fixed, so that it is the same in every run.

    >>> load().test
    Examples(359 of (1, 8, 8), 10 classes)
    """
    from sklearn.datasets import load_digits

    pixels, label = load_digits(return_X_y=True)
    images = torch.from_numpy(np.rint(pixels * 255 / 16).astype(np.uint8)).view(-1, 1, 8, 8)
    every = Examples(images, torch.from_numpy(label.astype(np.int64)), tuple("0123456789"))
    places = dict(zip(("train", "test"), hold_out(every.target, 0.2, seed=0, purpose=Purpose.TEST), strict=True))
    return DataSet(
        "digits",
        {part: every.subset(places[part]) for part in parts},
        preprocess="scale",
        choices={"split": "a fifth of each class for the test, by seed 0"},
    )


def masks(parts: Sequence[str] = ("train", "test")) -> DataSet:
    """The same digits to be segmented: masks (N, 8, 8) of paper and of ink, from half black on; the digit is the group.

    >>> masks().test.target.shape, masks().test.groups[:2]
    (torch.Size([359, 8, 8]), ('0', '1'))
    """
    data, made = load(parts), {}
    for part, examples in data.parts.items():
        images = examples.images[torch.arange(len(examples))]
        ink = (images[:, 0] >= INK).to(torch.uint8)
        made[part] = Examples(images, ink, ("paper", "ink"), examples.target, examples.classes)
    return DataSet("digits-masks", made, preprocess=data.preprocess, choices=data.choices)

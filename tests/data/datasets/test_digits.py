import hashlib

import numpy as np
from sklearn.datasets import load_digits

from torchmcl import data


def test_all_digits_once() -> None:
    digits = data.load("digits")
    assert digits.preprocess == "scale"
    assert digits.train.classes == digits.test.classes == tuple("0123456789")
    assert digits.test.target.bincount().tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    pixels, label = load_digits(return_X_y=True)
    expected = sorted((int(y), *np.floor(x * 255 / 16 + 0.5).astype(int)) for x, y in zip(pixels, label, strict=True))
    found = [
        (int(y), *x.flatten().tolist())
        for part in (digits.train, digits.test)
        for x, y in zip(part.images, part.target, strict=True)
    ]
    # Half of 255 rounds to the even 128, as it does upwards.
    assert sorted(found) == expected


def test_the_test_set_never_changes() -> None:
    for seed in (0, 7):
        test = data.load("digits", seed=seed).test
        assert test.target[:12].tolist() == [2, 3, 1, 3, 5, 0, 1, 5, 0, 8, 0, 3]
        assert hashlib.md5(test.images.numpy().tobytes()).hexdigest() == "2aa4a87c206c1a8417dee099714fb8f3"


def test_one_part_is_the_same_part() -> None:
    alone, both = data.load("digits", parts=("test",)), data.load("digits")
    assert list(alone.parts) == ["test"]
    assert alone.test.images.equal(both.test.images)


def test_masks_of_another_size() -> None:
    small, large = data.load("digits-masks").test, data.load("digits-masks", size=(16, 24)).test
    assert (large.images.shape[1:], large.target.shape[1:]) == ((1, 16, 24), (16, 24))
    assert large.images[:, :, ::2, ::3].equal(small.images)
    assert large.target[:, 1::2, 2::3].equal(small.target)

import numpy as np
import pytest
import torch

from torchmcl import data
from torchmcl.data.selection import select
from torchmcl.errors import UsageError


def rows(examples: data.Examples) -> set[bytes]:
    return {image.numpy().tobytes() for image in examples.images}


def pets(count: int = 40) -> data.DataSet:
    x, y = np.arange(count, dtype=np.float32)[:, None], ["cat", "cow", "dog", "eel"] * (count // 4)
    return data.from_arrays(x, y)


def test_classes_in_the_order_given() -> None:
    every = data.load("digits")
    for classes in ("8,3", " 8 , 3 ", ["8", "3"], ("8", "3")):
        few = data.load("digits", classes=classes)
        assert few.classes == ("8", "3")
        assert few.choices["classes"] == ["8", "3"]
        for part in ("train", "test"):
            old, new = every.parts[part], few.parts[part]
            keep = (old.target == 8) | (old.target == 3)
            assert new.images.equal(old.images[keep])
            assert new.target.equal((old.target[keep] == 3).long())
    assert data.load("digits", classes="7").train.target.unique().tolist() == [0]


@pytest.mark.parametrize(
    ("classes", "match"),
    [
        ("airplane", "Unknown class 'airplane'. The classes are cat, cow, dog, eel"),
        ("dogs", r"Unknown class 'dogs'. Did you mean dog\?"),
        ("Cat,dog", r"Unknown class 'Cat'. Did you mean cat\?"),
        ("cat,cat", "Expected one or more unique classes, got cat, cat"),
        ([], "Expected one or more unique classes, got none"),
        ("", "Unknown class ''"),
    ],
)
def test_classes_that_are_none(classes, match) -> None:
    with pytest.raises(UsageError, match=match):
        select(pets(), classes=classes)


def test_many_classes_are_not_all_listed() -> None:
    many = data.from_arrays(np.zeros((60, 1)), [f"class {i:02d}" for i in range(30)] * 2)
    with pytest.raises(UsageError, match=r"Unknown class 'zzz'. The classes are .*class 09 and 20 more"):
        select(many, classes="zzz")


def test_a_limit_is_stratified_and_seeded() -> None:
    few, again, other = (data.load("digits", limit=100, seed=seed) for seed in (0, 0, 1))
    assert few.train.target.bincount().tolist() == [10] * 10
    assert few.train.images.equal(again.train.images)
    assert rows(few.train) != rows(other.train)
    assert len(few.test) == 359
    assert len(data.load("digits", limit=10**6).train) == 1438


def test_validation_is_stratified_disjoint_and_seeded() -> None:
    every = data.load("digits")
    few, again, other = (data.load("digits", validation=0.1, seed=seed) for seed in (0, 0, 1))
    share = few.validation.target.bincount() / every.train.target.bincount()
    assert ((share - 0.1).abs() < 0.005).all()
    assert not rows(few.train) & rows(few.validation)
    assert rows(few.train) | rows(few.validation) == rows(every.train)
    assert few.validation.images.equal(again.validation.images)
    assert not few.validation.images.equal(other.validation.images)
    assert few.choices["validation"] == 0.1


def test_a_limit_comes_before_validation() -> None:
    few = data.load("digits", limit=200, validation=0.2)
    assert len(few.train) + len(few.validation) == 200
    assert few.validation.target.bincount().tolist() == [4] * 10


def test_at_least_one_of_each_class_is_held_out() -> None:
    few = select(pets(), validation=0.001)
    assert few.validation.target.bincount().tolist() == [1] * 4


def test_a_test_alone_is_neither_limited_nor_held_out() -> None:
    few = data.load("digits", parts=("test",), limit=5, validation=0.5)
    assert list(few.parts) == ["test"]
    assert len(few.test) == 359


def test_a_part_without_the_class() -> None:
    x, y = np.zeros((6, 1)), ["cat"] * 5 + ["dog"]
    with pytest.raises(UsageError, match="The test part of arrays has no examples of dog"):
        select(data.from_arrays(x, y), classes="dog")


@pytest.mark.parametrize("validation", [-0.1, 1, 2, float("nan")])
def test_a_fraction_that_is_none(validation) -> None:
    with pytest.raises(UsageError, match="Expected 0 <= validation < 1"):
        select(pets(), validation=validation)


def test_a_limit_that_is_none() -> None:
    with pytest.raises(UsageError, match="Expected limit >= 1, got 0"):
        select(pets(), limit=0)


def test_the_original_is_left_alone() -> None:
    original = pets()
    before = original.train.target.clone()
    select(original, classes="eel,cat", limit=4, validation=0.5)
    assert original.train.target.equal(before)
    assert list(original.parts) == ["train", "test"]
    assert original.choices == {"split": "0.2 of each class held out for testing", "split_seed": 0}
    assert torch.equal(original.train.target.unique(), torch.arange(4))

from dataclasses import replace
from hashlib import sha256

import pytest
import torch

from torchmcl.data import DataSet, Examples, ImageFiles, Loader
from torchmcl.data.selection import select_classes
from torchmcl.errors import UsageError


def examples() -> Examples:
    images = torch.arange(4, dtype=torch.uint8).view(4, 1, 1, 1)
    return Examples(images, torch.tensor([0, 1, 1, 0]), ("cat", "dog"), torch.tensor([2, 1, 0, 2]), ("a", "b", "c"))


def test_a_subset_keeps_the_order_of_the_index() -> None:
    few = examples().subset(torch.tensor([3, 0, 2]))
    assert len(few) == 3
    assert few.images.flatten().tolist() == [3, 0, 2]
    assert few.target.tolist() == [0, 0, 1]
    assert few.group.tolist() == [2, 2, 0]
    assert (few.classes, few.groups) == (("cat", "dog"), ("a", "b", "c"))


def test_a_subset_of_files_reads_none() -> None:
    few = Examples(ImageFiles(("a", "b", "c"), (8, 8)), torch.tensor([0, 1, 0]), ("cat", "dog")).subset([2, 0])
    assert few.images.paths == ("c", "a")


def test_what_is_counted() -> None:
    pets = examples()
    assert pets.labels is pets.group
    assert pets.label_names == ("a", "b", "c")
    plain = Examples(pets.images, pets.target, pets.classes)
    assert plain.labels is plain.target
    assert plain.label_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0, 1, 0], "targets and groups of the same length, got lengths 4 and 3"),
        ([0, 1, 2, 0], "labels from 0 to 1, got 0 to 2"),
        ([0, 1, -1, 0], "labels from 0 to 1, got -1 to 1"),
    ],
)
def test_what_does_not_fit(target, message) -> None:
    with pytest.raises(UsageError, match=message):
        Examples(torch.zeros(4, 2), torch.tensor(target), ("cat", "dog"))


@pytest.mark.parametrize(
    "label",
    [
        torch.tensor([0.2, 0.9, 1.7, 0.0]),
        torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float16),
        torch.tensor([0.0, float("nan"), 1.0, 0.0]),
        torch.tensor([True, False, True, False]),
        torch.tensor([0, 1, 1, 0], dtype=torch.complex64),
        torch.tensor([[0], [1], [1], [0]]),
        torch.tensor(1),
        [0, 1, 1, 0],
    ],
)
def test_labels_are_never_rounded(label) -> None:
    images, whole, names = torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]), ("cat", "dog")
    with pytest.raises(UsageError, match=r"^Expected targets \(N,\)") as caught:
        Examples(images, label, names)
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match=r"^Expected groups \(N,\)"):
        Examples(images, whole, names, label, names)


def test_numbers_to_predict() -> None:
    examples = Examples(torch.zeros(4, 3), torch.tensor([[0.5], [1.5], [2.0], [3.0]]), ())
    assert examples.continuous
    assert not examples.dense
    assert (examples.labels.tolist(), examples.label_names) == ([0, 0, 0, 0], ("all",))
    assert repr(examples.subset([1, 2])) == "Examples(2 of (3,), 1 target value)"
    several = torch.full((2, 3, 2), torch.nan)
    several[:, 0] = 1.0
    assert Examples(torch.zeros(2, 3), several, ()).continuous
    grouped = Examples(torch.zeros(2, 3), torch.rand(2, 1), (), torch.tensor([1, 0]), ("a", "b"))
    assert (grouped.labels.tolist(), grouped.label_names) == ([1, 0], ("a", "b"))


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (torch.rand(4), r"numbers to predict \(N, D\) or \(N, T, D\), got targets \(4,\)"),
        (torch.rand(4, 0), "got targets"),
        (torch.tensor([[0.0], [1.0], [torch.nan], [2.0]]), "got nan in example 2"),
        (torch.tensor([[0.0], [torch.inf], [1.0], [2.0]]), "got inf in example 1"),
        (torch.full((4, 2, 1), torch.nan), "Example 0 has no target"),
        (torch.rand(3, 1), "same length"),
    ],
)
def test_bad_numbers_are_one_clear_line(target, says) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Examples(torch.zeros(4, 3), target, ())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_any_whole_type_are_what_they_are_as_int64(dtype) -> None:
    target = torch.tensor([0, 2, 1])
    pets = Examples(torch.zeros(3, 2), target.to(dtype), ("cat", "cow", "dog"))
    assert pets.labels.dtype == torch.int64
    assert select_classes(pets, ["dog", "cat"]).target.tolist() == [1, 0]  # bytes would be read as a mask
    grouped = Examples(torch.zeros(3, 2), target, pets.classes, target.to(dtype), pets.classes)
    (batch,) = Loader(grouped, shuffle=False, preprocess="none")
    assert batch.group.dtype == batch.target.dtype == torch.int64


@pytest.mark.parametrize("index", [torch.tensor([True, False, True, False]), [0.2, 1.7], [float("nan")], [[0], [1]]])
def test_what_is_no_index(index) -> None:
    with pytest.raises(UsageError, match="Expected indices"):
        examples().subset(index)
    assert len(examples().subset([])) == 0


def test_a_part_that_was_not_read() -> None:
    pets = DataSet("pets", {"test": examples()})
    assert pets.classes == ("cat", "dog")
    assert pets.validation is None
    with pytest.raises(UsageError, match=r"The train part of pets was not loaded \(loaded: test\)"):
        _ = pets.train


def test_weights() -> None:
    weighted = replace(examples(), weight=torch.tensor([0.5, 1.0, 2.0, 4.5]))
    assert weighted.subset([3, 1]).weight.tolist() == [4.5, 1.0]
    batches = list(Loader(weighted, batch_size=2, shuffle=False, preprocess="none"))
    assert torch.cat([batch.weight for batch in batches]).tolist() == [0.5, 1.0, 2.0, 4.5]
    shared = [Loader(weighted, batch_size=2, rank=rank, world=2, preprocess="none") for rank in range(2)]
    for loader in shared:
        assert loader.mean_weight == 2
        assert [batch.weight.tolist() for batch in loader] == [weighted.weight[b.index].tolist() for b in loader]
    plain = Loader(examples(), preprocess="none")
    assert next(iter(plain)).weight is None
    assert plain.mean_weight == 1


def test_weights_tell_sets_apart() -> None:
    plain, one, two = examples(), *(replace(examples(), weight=torch.full((4,), w)) for w in (1.0, 2.0))
    assert plain.label_fingerprint == sha256(plain.target.numpy().tobytes()).hexdigest()[:16]
    assert len({each.fingerprint for each in (plain, one, two)}) == 3
    assert len({each.label_fingerprint for each in (plain, one, two)}) == 3


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), r"weights \(4,\), got torch.float32 \(3,\)"),
        (torch.ones(4, 1), r"got torch.float32 \(4, 1\)"),
        (torch.ones(4, dtype=torch.int64), "got torch.int64"),
        ([1.0, 1.0, 1.0, 1.0], "got list"),
        (torch.tensor([1.0, 0.0, 1.0, 1.0]), r"above 0, got 0 to 1. Remove invalid examples"),
        (torch.tensor([1.0, -1.0, 1.0, 1.0]), "above 0, got -1 to 1"),
        (torch.tensor([1.0, float("nan"), 1.0, 1.0]), "above 0, got nan"),
        (torch.tensor([1.0, float("inf"), 1.0, 1.0]), "above 0, got 1 to inf"),
    ],
)
def test_weights_that_cannot_be(weight, message) -> None:
    with pytest.raises(UsageError, match=message) as problem:
        replace(examples(), weight=weight)
    assert "\n" not in str(problem.value)

"""Map-style data sets of one's own: read when needed, the same whoever reads, errors in one line."""

import multiprocessing
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from torchmcl import data
from torchmcl.data import Loader, from_arrays, from_dataset
from torchmcl.data.streaming import Streamed
from torchmcl.errors import UsageError

# Starting a worker from a process with threads warns from Python 3.12 on; torch does so by itself.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def tensors(count=30):
    x = torch.randint(256, (count, 1, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(count) % 3


class Noisy(Dataset):
    """What it draws comes from all three global generators."""

    def __init__(self, count=30):
        self.x, self.targets = tensors(count)
        self.read = []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        self.read.append(at)
        drawn = [torch.rand(()), np.random.rand(), random.random()]  # noqa: NPY002
        return self.x[at].float() + torch.tensor(drawn).sum(), int(self.targets[at])


class Given(Dataset):
    """Whatever `item(at)` returns or raises."""

    def __init__(self, item, count=6, **attributes):
        self.item, self.count = item, count
        vars(self).update(attributes)

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        return self.item(at)


def shown(batches):
    return [(batch.index.tolist(), batch.x) for batch in batches]


def alike(one, two):
    return len(one) == len(two) and all(a[0] == b[0] and a[1].equal(b[1]) for a, b in zip(one, two, strict=True))


def test_the_parts_are_those_of_arrays():
    x, y = tensors()
    for options in ({}, {"limit": 12, "validation": 0.25, "seed": 3}, {"test": 0.5}):
        streamed, held = from_dataset(TensorDataset(x, y), **options), from_arrays(x, y, **options)
        assert streamed.preprocess == held.preprocess == "gcn"
        assert streamed.choices == held.choices
        assert streamed.parts.keys() == held.parts.keys()
        for part, examples in streamed.parts.items():
            expected = held.parts[part]
            assert isinstance(examples.images, Streamed)
            assert examples.images[torch.arange(len(examples))].equal(expected.images)
            assert examples.target.equal(expected.target)
            assert examples.classes == expected.classes
            assert examples.fingerprint == expected.fingerprint


def test_sets_of_their_own_for_test_and_validation():
    x, y = tensors()
    made = from_dataset(*(TensorDataset(x[a:b], y[a:b]) for a, b in ((0, 18), (18, 24), (24, 30))), classes=list("abc"))
    assert [len(made.parts[part]) for part in ("train", "test", "validation")] == [18, 6, 6]
    assert made.test.images[torch.arange(6)].equal(x[18:24])
    assert made.classes == ("a", "b", "c")
    assert list(from_dataset(TensorDataset(x, y), test=0).parts) == ["train"]


def test_building_it_reads_one_example_where_targets_are_known():
    for extra in ({"targets": [0, 1] * 10}, {}):
        noisy = Noisy(20)
        noisy.targets = torch.arange(20) % 2
        from_dataset(noisy, **extra)
        assert noisy.read == [0]


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, np.array])
@pytest.mark.parametrize("attribute", ["targets", "labels"])
def test_targets_as_torchvision_has_them(attribute, kind):
    there = Given(lambda at: (torch.zeros(2), at % 2), 6, **{attribute: kind([0, 1] * 3)}, classes=["cat", "dog"])
    made = from_dataset(there, test=0)
    assert made.train.target.tolist() == [0, 1] * 3
    assert made.classes == ("cat", "dog")
    part = from_dataset(Subset(Subset(there, [5, 3, 1, 0]), [0, 3]), test=0, classes=["cat", "dog"])
    assert part.train.target.tolist() == [1, 0]


def test_targets_are_read_where_nothing_tells_them():
    read = []

    def item(at):
        read.append(at)
        return torch.full((2,), float(at)), np.int64(7 + at % 2)

    made = from_dataset(Given(item), test=0)
    assert made.classes == ("7", "8")
    assert made.train.target.tolist() == [0, 1] * 3
    assert read == [0, *range(6)]
    assert made.train.images[torch.tensor([4])].tolist() == [[4.0, 4.0]]


def test_targets_that_are_given_replace_those_of_items():
    for item in (lambda at: torch.full((2,), float(at)), lambda at: (torch.full((2,), float(at)), "?", None)):
        made = from_dataset(Given(item), targets=["b", "a"] * 3, test=0)
        assert made.train.target.tolist() == [1, 0] * 3
        assert made.train.images[torch.arange(6)][:, 0].tolist() == list(range(6))


def test_forms_of_x():
    pairs = {
        (1, 3, 4): torch.zeros(3, 4, dtype=torch.uint8),
        (2, 3, 4): torch.zeros(2, 3, 4, dtype=torch.float64),
        (5,): torch.zeros(5, dtype=torch.int64),
    }
    for shape, x in pairs.items():
        made = from_dataset(Given(lambda at, x=x: (x, at % 2)), test=0)
        assert made.train.images.shape == (6, *shape)
        assert made.train.images.dtype == (torch.uint8 if x.dtype == torch.uint8 else torch.float32)
        assert made.train.images[torch.arange(2)].shape == (2, *shape)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_drawn_follows_from_seed_epoch_and_example(workers):
    examples = from_dataset(Noisy(), test=0).train
    whole = shown(Loader(examples, batch_size=8, seed=5, preprocess="none").epoch(3))
    same = Loader(from_dataset(Noisy(), test=0).train, batch_size=8, seed=5, preprocess="none", workers=workers)
    assert alike(shown(same.epoch(3)), whole)
    assert alike(shown(same.epoch(3, start=2)), whole[2:])
    by_index = {at: x for index, batch in whole for at, x in zip(index, batch, strict=True)}
    for rank in range(2):
        part = Loader(examples, batch_size=8, seed=5, preprocess="none", workers=workers, rank=rank, world=2)
        found = shown(part.epoch(3))
        assert found
        assert all(x.equal(by_index[at]) for index, batch in found for at, x in zip(index, batch, strict=True))
    other = Loader(examples, batch_size=8, seed=6, preprocess="none")
    for others in (shown(same.epoch(4)), shown(other.epoch(3))):
        values = {at: x for index, batch in others for at, x in zip(index, batch, strict=True)}
        assert not any(values[at].equal(by_index[at]) for at in by_index)


@given(seed=st.integers(0, 2**63 - 1), number=st.integers(0, 2**40))
def test_no_two_examples_of_an_epoch_draw_alike(seed, number):
    flat = from_dataset(Given(lambda at: (torch.rand(1), 0), 12, targets=[0] * 12), test=0)
    found = next(Loader(flat.train, batch_size=12, seed=seed, preprocess="none").epoch(number))
    assert len(found.x.unique()) == 12


def test_the_caller_s_generators_are_left_alone():
    torch.manual_seed(4), np.random.seed(4), random.seed(4)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(4), np.random.seed(4), random.seed(4)  # noqa: NPY002
    made = from_dataset(Noisy(), test=0)
    list(Loader(made.train, batch_size=8))
    assert made.train.fingerprint == made.train.fingerprint
    assert (torch.rand(1), np.random.rand(), random.random()) == expected  # noqa: NPY002


def test_an_example_that_comes_twice_in_an_epoch_is_drawn_twice():
    noisy = Noisy(13)
    noisy.targets = torch.tensor([0] * 12 + [1])
    examples = from_dataset(noisy, test=0).train
    batch = next(Loader(examples, batch_size=13, sampling="classes", preprocess="none").epoch(2))
    assert (batch.index == 12).sum() in (6, 7)
    assert len(batch.x[batch.index == 12].flatten(1).unique(dim=0)) > 1


def refused(message, *arguments, **options):
    with pytest.raises(UsageError, match=message) as caught:
        from_dataset(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_what_is_no_data_set():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(2), 0

    fine = TensorDataset(*tensors())
    refused("got DataLoader. Use data.from_loaders", DataLoader(fine))
    refused("got Stream. Use data.from_loaders", Stream())
    refused(r"map-style Dataset of \(x, y\) as train, got int", 3)
    refused(r"map-style Dataset of \(x, y\) as test, got NoneType", fine, None)
    refused("The data set train is empty", Subset(fine, []))
    refused("fraction between 0 and 1 to hold out, got 1.5", fine, 1.5)
    refused("Expected 0 <= validation < 1", fine, 0.2, 1)
    refused("Unknown preprocessing", fine, preprocess="gnc")
    refused("target for each of the 30 examples of train, got 2", fine, targets=[0, 1])
    refused("Cannot use test_targets if test is a fraction", fine, 0.2, test_targets=[0])
    refused(
        r"test to have the shape and type of train, \(1, 4, 5\)",
        fine,
        TensorDataset(torch.zeros(3, 7), torch.arange(3)),
    )
    refused("a list of class names", fine, classes="abc")


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (lambda at: {"x": torch.zeros(2)}, r"\(x, y\) with a tensor x, got dict for example 0 of train"),
        (lambda at: (np.zeros(2), 0), r"got tuple of ndarray, int for example 0 of train. Return torch tensors"),
        (lambda at: (torch.zeros(2),), "got tuple of Tensor for example 0"),
        (lambda at: (torch.zeros(2), None), "y to be an integer, or floats to predict, got NoneType for example 0"),
        (lambda at: (torch.zeros(2), torch.zeros(1, 2, 3)), "or floats to predict, got Tensor for example 0 of train"),
        (lambda at: (torch.zeros(2), torch.zeros(1 + at % 2)), "same shape of all y in train.*pad several targets"),
        (lambda at: (torch.zeros(2), 0.5 if at else 1), "same shape of all y in train"),
        (lambda at: (torch.zeros(2), float("nan")), "finite targets, got nan in example 0"),
        (lambda at: (torch.zeros(1, 2, 3, 4), 0), r"image \(C, H, W\).* got \(1, 2, 3, 4\)"),
        (lambda at: (torch.zeros(3, 2, dtype=torch.int64), 0), "uint8 or float values, got torch.int64"),
        (lambda at: (torch.full((2,), torch.nan), 0), "finite numbers, got NaN or infinity for example 0"),
        (lambda at: (torch.zeros(2), [0, 1][at - 4]), "example 0 of train failed with IndexError.*Subset"),
        (lambda at: (torch.zeros(2), 1 // (3 - at)), "example 3 of train failed with ZeroDivisionError"),
    ],
)
def test_items_that_cannot_be(item, message):
    refused(message, Given(item))


def test_labels_outside_the_classes():
    wrong = Given(lambda at: (torch.zeros(2), 9 if at == 4 else at % 2))
    refused("Unknown labels in train: 9, first found in example 4. The classes are cat", wrong, classes=["cat", "dog"])
    fine = Given(lambda at: (torch.zeros(2), at % 2))
    refused("Unknown labels in test: 9, first found in example 4. The classes are 0, 1", fine, wrong)


class Changing(Given):
    """Wrong from the second time on."""

    def __init__(self, wrong):
        super().__init__(wrong, 20, targets=[0, 1] * 10)

    def __getitem__(self, at):
        return self.item(at) if at in (7, 8) else (torch.zeros(1, 4, 4), at % 2)


def broken(at):
    raise OSError("disk\ngone")


@forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (broken, "example [78] of train failed with OSError: disk gone"),
        (lambda at: (torch.zeros(1, 4, 3), at % 2), r"all examples to be \(1, 4, 4\) .* in example [78] of train"),
        (lambda at: (torch.zeros(1, 4, 4), 5), "The targets contain [01] for example [78] of train, but its y is 5"),
        (lambda at: None, r"Expected \(x, y\) with a tensor x, got NoneType for example [78]"),
    ],
)
def test_an_example_that_goes_wrong_is_one_line(workers, wrong, message):
    made = from_dataset(Changing(wrong), test=0)
    with pytest.raises(UsageError, match=message) as caught:
        list(Loader(made.train, batch_size=4, workers=workers))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_a_data_set_that_cannot_be_sent_to_workers():
    class Here(Given):
        pass

    made = from_dataset(Here(lambda at: (torch.zeros(2), at % 2)), test=0)
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(UsageError, match=r"Cannot send the data to worker processes.*or pass workers=0") as caught:
            list(Loader(made.train, workers=1))
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert "\n" not in str(caught.value)


def test_it_is_in_the_package():
    assert data.from_dataset is from_dataset

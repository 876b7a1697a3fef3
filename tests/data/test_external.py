"""Loaders of one's own: batches as they come, epochs that follow from the seed, errors in one line."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from torchmcl.data import from_loaders
from torchmcl.data.external import ExternalLoader
from torchmcl.data.transforms import Flip
from torchmcl.errors import UsageError

CLASSES = ["a", "b", "c"]
# Starting a worker from a process with threads warns from Python 3.12 on; torch does so by itself.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def pairs(count=30):
    x = torch.randint(256, (count, 1, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, torch.arange(count) % 3)


class Stream(IterableDataset):
    """Of a length that nobody knows."""

    def __init__(self, count=7):
        self.count = count

    def __iter__(self):
        return iter([(torch.full((2,), float(at)), at % 3) for at in range(self.count)])


def loader(source, **options):
    return ExternalLoader(from_loaders(source, classes=CLASSES).train, **options)


def test_batches_come_in_the_loader_s_own_order():
    part = from_loaders(DataLoader(pairs(), batch_size=8), classes=CLASSES, preprocess="gcn").train
    found = list(ExternalLoader(part))
    x, y = pairs().tensors
    assert torch.cat([batch.x for batch in found]).equal(x.float())
    assert torch.cat([batch.target for batch in found]).equal(y)
    assert torch.cat([batch.index for batch in found]).tolist() == list(range(30))
    assert [batch.total for batch in found] == [8, 8, 8, 6]
    assert found[0].x.is_contiguous(memory_format=torch.channels_last)
    assert len(ExternalLoader(part)) == 4
    assert len(part) == 30


def test_parts_hold_nothing():
    made = from_loaders(*(DataLoader(pairs(), batch_size=8) for _ in range(3)), classes=CLASSES)
    assert list(made.parts) == ["train", "test", "validation"]
    for part in made.parts.values():
        assert part.images.shape == (0, 1, 4, 5)
        assert part.images.dtype == torch.uint8
        assert part.classes == ("a", "b", "c")
        assert part.target.ndim == 1
    assert made.train.fingerprint == made.test.fingerprint
    fewer = from_loaders(DataLoader(pairs(20), batch_size=8), classes=CLASSES)
    assert made.train.fingerprint != fewer.train.fingerprint


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_follows_from_seed_and_number(workers):
    def order(seed, number, **options):
        source = DataLoader(pairs(), batch_size=8, shuffle=True, num_workers=workers, **options)
        return torch.cat([batch.x for batch in loader(source, seed=seed).epoch(number)])

    one = order(3, 2)
    torch.manual_seed(99)
    assert order(3, 2).equal(one)
    assert not order(3, 1).equal(one)
    assert not order(4, 2).equal(one)


def test_numpy_and_python_are_seeded_too():
    class Noisy(TensorDataset):
        def __getitem__(self, at):
            x, y = super().__getitem__(at)
            return x + np.random.rand() + random.random(), y  # noqa: NPY002

    made = loader(DataLoader(Noisy(*pairs().tensors), batch_size=8))
    one, two, other = (torch.cat([batch.x for batch in made.epoch(number)]) for number in (1, 1, 2))
    assert one.equal(two)
    assert not one.equal(other)


def test_making_it_leaves_generators_alone():
    torch.manual_seed(4), np.random.seed(4), random.seed(4)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(4), np.random.seed(4), random.seed(4)  # noqa: NPY002
    from_loaders(DataLoader(pairs(), shuffle=True, batch_size=4), classes=CLASSES)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected  # noqa: NPY002


@pytest.mark.parametrize("batched", [False, True])
def test_samplers_are_told_the_epoch(batched):
    told = []

    class Sampler(RandomSampler):
        def set_epoch(self, number):
            told.append(number)

    class Batches(BatchSampler):
        def set_epoch(self, number):
            told.append(number)

    sampler = Sampler(pairs())
    batches = Batches(RandomSampler(pairs()), 4, False)
    source = DataLoader(pairs(), batch_sampler=batches) if batched else DataLoader(pairs(), 4, sampler=sampler)
    made = loader(source)
    list(made.epoch(1)), list(made.epoch(7))
    assert told == [1, 7]


def test_a_length_that_is_not_known():
    part = from_loaders(DataLoader(Stream(), batch_size=3), classes=CLASSES).train
    made = ExternalLoader(part, training=True)
    assert [batch.total for batch in made] == [3, 4]  # one alone is joined to the batch before
    assert len(part) == 7
    with pytest.raises(TypeError):
        len(made)
    assert [batch.total for batch in ExternalLoader(part)] == [3, 3, 1]


def test_other_iterables_will_do():
    batches = [
        [torch.rand(2, 3, dtype=torch.float64), torch.tensor([0, 2]), "more"],
        (torch.rand(1, 3), torch.ones(1).int()),
    ]
    found = list(loader(batches))
    assert [batch.total for batch in found] == [2, 1]
    assert {batch.x.dtype for batch in found} == {torch.float32}
    assert {batch.target.dtype for batch in found} == {torch.int64}


def test_transforms_follow_from_seed_epoch_and_batch():
    made = loader(DataLoader(pairs(), batch_size=8), transform=Flip(), seed=2)
    plain = [batch.x for batch in loader(DataLoader(pairs(), batch_size=8))]
    one, two, other = ([batch.x for batch in made.epoch(number)] for number in (1, 1, 2))
    assert all(map(torch.equal, one, two))
    assert not all(map(torch.equal, one, plain))
    assert not all(map(torch.equal, one, other))


def test_an_epoch_cannot_begin_in_the_middle():
    with pytest.raises(UsageError, match="at its first batch, got start=2"):
        next(loader(DataLoader(pairs())).epoch(1, start=2))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 2)])
def test_floats_are_numbers_to_predict(shape):
    y = torch.rand(30, *shape, dtype=torch.float64)
    if len(shape) == 2:
        y[::2, 1:] = torch.nan
    source = DataLoader(TensorDataset(torch.rand(30, 4), y), batch_size=8)
    made = from_loaders(source, source)
    wanted = y.reshape(30, *(shape or (1,))).float()
    assert made.train.continuous
    torch.testing.assert_close(made.train.target, wanted, equal_nan=True)
    found = torch.cat([batch.target for batch in ExternalLoader(made.test)])
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert made.test.target.shape == (0, *wanted.shape[1:])


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            [torch.tensor([0, 1])],
            r"y to be floats \(2,\), \(2, D\) .* got \(2,\) torch.int64 in batch 1",
        ),
        ([torch.rand(3)], r"got \(3,\) torch.float32 in batch 1"),
        ([torch.rand(2, 0)], r"got \(2, 0\) torch.float32"),
        (
            [torch.rand(2), torch.tensor([1.0, torch.nan])],
            "Batch 2 of the train loader: .* targets, got nan",
        ),
        ([torch.rand(2), torch.rand(2, 2)], r"all batches to be \(B, 1,\) torch.float32, got \(2, 2\) .* in batch 2"),
    ],
)
def test_numbers_of_the_wrong_kind(y, message):
    refused(message, [(torch.zeros(2, 3), one) for one in y], classes=None)


def refused(message, *sources, classes=CLASSES, **options):
    with pytest.raises(UsageError, match=message) as caught:
        list(ExternalLoader(from_loaders(*sources, classes=classes, **options).train))
    assert "\n" not in str(caught.value)


def batch(x=None, y=None):
    return torch.zeros(2, 3) if x is None else x, torch.tensor([0, 1]) if y is None else y


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "The train loader has no batches"),
        (DataLoader(Stream(0)), "The train loader has no batches"),
        (iter([batch()]), "can be iterated more than once, got list_iterator"),
        (pairs(), "got TensorDataset. Pass a DataLoader, or use data.from_dataset"),
        (3, "can be iterated more than once, got int"),
        ([{"x": 1}], "of tensors, got dict for batch 1 of the train loader"),
        ([torch.zeros(2, 3)], "of tensors, got Tensor for batch 1"),
        ([(torch.zeros(2, 3),)], "of tensors, got tuple for batch 1"),
        ([batch(np.zeros((2, 3)))], "of tensors, got tuple for batch 1"),
        ([batch(torch.zeros(2, 3, 4))], r"x \(B, C, H, W\) or \(B, D\), .* got \(2, 3, 4\)"),
        ([batch(torch.zeros(2, 3, dtype=torch.int64))], "uint8 or float, got .* torch.int64 in batch 1"),
        ([batch(y=torch.tensor([0.0, 1.0]))], r"y to be integers \(2,\), got \(2,\) torch.float32"),
        ([batch(y=torch.tensor([0]))], r"y to be integers \(2,\), got \(1,\)"),
        ([batch(y=torch.tensor([0, 3]))], "y from 0 to 2, got 0 to 3 in batch 1 of the train loader"),
        ([batch(), batch(y=torch.tensor([-1, 1]))], "y from 0 to 2, got -1 to 1 in batch 2"),
        ([batch(), batch(torch.zeros(2, 4))], r"all batches to be \(B, 3,\) .* got \(2, 4\) .* in batch 2"),
        ([batch(torch.full((2, 3), torch.inf))], "finite numbers, got NaN or infinity in batch 1"),
    ],
)
def test_what_cannot_be(source, message):
    refused(message, source)


def test_parts_that_differ_and_names_that_are_none():
    refused(r"\(B, 3,\) .* got \(2, 4\) .* in batch 1 of the test loader", [batch()], [batch(torch.zeros(2, 4))])
    refused("list of unique class names", [batch()], classes="abc")
    refused("list of unique class names", [batch()], classes=["a", "a"])
    refused("list of unique class names", [batch()], classes=3)
    refused("Unknown preprocessing", [batch()], preprocess="gnc")


class Failing(TensorDataset):
    def __getitem__(self, at):
        if at == 17:
            raise KeyError("label\n17")
        return super().__getitem__(at)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_fails_is_one_line(workers):
    source = DataLoader(Failing(*pairs().tensors), batch_size=8, num_workers=workers)
    refused(r"train loader failed after 2 batches with KeyError: .*17.*resume", source)

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from torchmcl.data import Examples, ImageFiles, Loader, loader
from torchmcl.data.preprocess import global_contrast
from torchmcl.errors import UsageError

# Starting a worker from a process with threads warns from Python 3.12 on; torch does so by itself.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

counts, sizes, worlds, seeds = st.integers(1, 60), st.integers(1, 20), st.integers(1, 4), st.integers(0, 1000)


def numbered(count: int, group: bool = False) -> Examples:
    images = torch.randint(256, (count, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    target = torch.arange(count) % 3
    classes = ("a", "b", "c")
    return Examples(images, target, classes, target.flip(0), classes) if group else Examples(images, target, classes)


def places(batches) -> list[list[int]]:
    return [batch.index.tolist() for batch in batches]


def joined(batches) -> list[int]:
    return [at for batch in batches for at in batch.index.tolist()]


@given(count=counts, size=sizes, seed=seeds, number=st.integers(0, 50), shuffle=st.booleans())
def test_every_example_once(count, size, seed, number, shuffle) -> None:
    load = Loader(numbered(count), batch_size=size, seed=seed, shuffle=shuffle)
    found = list(load.epoch(number))
    assert len(found) == len(load)
    order = joined(found)
    assert (sorted(order) if shuffle else order) == list(range(count))


@given(count=counts, size=sizes, world=worlds, seed=seeds, shuffle=st.booleans())
def test_processes_share_what_one_would_take(count, size, world, seed, shuffle) -> None:
    if shuffle:
        count, size = max(count, world), max(size, world)
    options = {"batch_size": size, "seed": seed, "shuffle": shuffle}
    shares = [list(Loader(numbered(count), **options, rank=rank, world=world).epoch(3)) for rank in range(world)]
    # What is cut into batches does not depend on the number of processes, but for the last one, which may be joined.
    whole = joined(Loader(numbered(count), **options).epoch(3))
    done = 0
    for step in range(len(shares[0])):
        batches = [share[step] for share in shares if step < len(share)]
        assert len({batch.total for batch in batches}) == 1
        together = whole[done : done + batches[0].total]
        for rank, batch in enumerate(batches):
            assert batch.index.tolist() == together[rank::world]
        assert sum(len(batch.index) for batch in batches) == batches[0].total
        done += batches[0].total
        if shuffle:
            assert len(batches) == world
    assert done == count
    for rank in range(world):
        assert len(shares[rank]) == len(Loader(numbered(count), **options, rank=rank, world=world))


@given(count=counts, size=sizes, seed=seeds, number=st.integers(1, 9), data=st.data())
def test_an_epoch_continues_exactly(count, size, seed, number, data) -> None:
    load = Loader(numbered(count), batch_size=size, seed=seed)
    start = data.draw(st.integers(0, len(load)))
    assert places(load.epoch(number, start=start)) == places(load.epoch(number))[start:]


def test_order_is_a_function_of_seed_and_epoch_alone() -> None:
    one, same, other = (Loader(numbered(50), batch_size=8, seed=seed) for seed in (1, 1, 2))
    list(same.epoch(1))
    torch.manual_seed(5)
    assert places(one.epoch(2)) == places(same.epoch(2)) == places(one.epoch(2))
    assert places(one.epoch(2)) != places(one.epoch(1))
    assert places(one.epoch(2)) != places(other.epoch(2))
    assert places(one) == places(one.epoch(1))


@pytest.mark.parametrize(
    ("count", "size", "world", "shuffle", "expected"),
    [
        (257, 128, 1, True, [128, 129]),
        (258, 128, 1, True, [128, 128, 2]),
        (257, 128, 1, False, [128, 128, 1]),
        (131, 64, 2, True, [64, 67]),
        (132, 64, 2, True, [64, 64, 4]),
        (1, 128, 1, True, [1]),
    ],
)
def test_a_small_last_batch_is_joined(count, size, world, shuffle, expected) -> None:
    load = Loader(numbered(count), batch_size=size, world=world, shuffle=shuffle)
    assert [batch.total for batch in load] == expected


def test_a_process_with_nothing_to_do_ends_earlier() -> None:
    shares = [Loader(numbered(9), batch_size=4, shuffle=False, rank=rank, world=2) for rank in range(2)]
    assert [places(share) for share in shares] == [[[0, 2], [4, 6], [8]], [[1, 3], [5, 7]]]
    assert [len(share) for share in shares] == [3, 2]


@pytest.mark.parametrize("resident", [True, False])
def test_what_a_batch_holds(resident, monkeypatch) -> None:
    if not resident:
        monkeypatch.setattr(loader, "MAX_RESIDENT_BYTES", 0)
    examples = numbered(10, group=True)
    batch = next(Loader(examples, batch_size=4).epoch(1))
    assert batch.x.dtype == torch.float32
    assert batch.x.is_contiguous(memory_format=torch.channels_last)
    assert_close(batch.x, global_contrast(examples.images[batch.index]))
    assert batch.target.dtype == batch.group.dtype == torch.int64
    assert batch.target.equal(examples.target[batch.index])
    assert batch.group.equal(examples.group[batch.index])
    assert batch.total == 4


def test_masks_come_as_whole_numbers() -> None:
    masks = torch.randint(2, (5, 4, 5), dtype=torch.uint8)
    examples = Examples(numbered(5).images, masks, ("background", "foreground"))
    batch = next(Loader(examples, batch_size=5, shuffle=False).epoch())
    assert batch.target.dtype == torch.int64
    assert batch.target.equal(masks.long())


def test_a_table() -> None:
    table = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    examples = Examples(table, torch.tensor([0, 1] * 3), ("a", "b"))
    batch = next(Loader(examples, batch_size=6, shuffle=False, preprocess="none").epoch())
    assert batch.x.equal(table)
    assert batch.group is None
    own = next(Loader(examples, batch_size=6, shuffle=False, preprocess=lambda x: 2 * x.double()).epoch())
    assert own.x.equal(2 * table.double())


def test_torch_s_own_randomness_is_left_alone(folder) -> None:
    before = torch.get_rng_state()
    list(Loader(numbered(9), batch_size=2))
    list(Loader(folder, batch_size=2))
    assert torch.get_rng_state().equal(before)


@pytest.fixture
def folder(tmp_path: Path) -> Examples:
    """Nine images as files."""
    examples = numbered(9)
    for at, image in enumerate(examples.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{at}.png")
    files = ImageFiles(tuple(str(tmp_path / f"{at}.png") for at in range(9)), size=(4, 5))
    return Examples(files, examples.target, examples.classes)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_files_come_as_from_memory(folder, workers) -> None:
    for options in ({}, {"shuffle": False}, {"rank": 1, "world": 2}):
        memory = Loader(numbered(9), batch_size=4, **options)
        files = Loader(folder, batch_size=4, workers=workers, **options)
        for start in (0, 1):
            pairs = list(zip(memory.epoch(2, start=start), files.epoch(2, start=start), strict=True))
            assert pairs
            for one, other in pairs:
                assert one.x.equal(other.x)
                assert one.index.equal(other.index)
                assert one.target.equal(other.target)
                assert one.total == other.total


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_one_line(folder, workers) -> None:
    damaged = Path(folder.images.paths[6])
    damaged.write_bytes(damaged.read_bytes()[:50])
    with pytest.raises(UsageError, match="cannot be read") as caught:
        list(Loader(folder, batch_size=4, workers=workers))
    assert str(damaged) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world": 0}, "Expected 0 <= rank < world, got rank=0 and world=0"),
        ({"rank": 2, "world": 2}, "Expected 0 <= rank < world, got rank=2 and world=2"),
        ({"batch_size": 0}, "Expected batch_size >= 1"),
        ({"batch_size": 1, "world": 2}, "Expected batch_size >= 2 for 2 processes, got 1"),
        ({"world": 11}, "Expected at least 11 examples for 11 processes, got 10"),
        ({"seed": -1}, "Expected seed >= 0 and workers >= 0"),
        ({"preprocess": "gnc"}, "Unknown preprocessing"),
    ],
)
def test_what_cannot_be(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        Loader(numbered(10), **options)


def test_no_examples() -> None:
    for shuffle in (True, False):
        with pytest.raises(UsageError, match="Expected at least 1 examples"):
            Loader(numbered(10).subset([]), shuffle=shuffle)


@pytest.mark.parametrize(("number", "start"), [(-1, 0), (1, -1), (1, 6)])
def test_an_epoch_that_is_none(number, start) -> None:
    load = Loader(numbered(10), batch_size=2)
    with pytest.raises(UsageError, match="Expected epoch >= 0 and 0 <= start <= 5"):
        load.epoch(number, start=start)
    assert list(load.epoch(1, start=5)) == []


def test_indices_fit_numpy() -> None:
    assert np.asarray(next(iter(Loader(numbered(4)))).index).dtype == np.int64


labels = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(label=labels, size=sizes, seed=seeds, number=st.integers(0, 9))
def test_sampling_by_class_shows_each_class_equally_often(label, size, seed, number) -> None:
    target = torch.tensor(label)
    examples = Examples(torch.zeros(len(label), 2), target, tuple("abcde"))
    load = Loader(examples, batch_size=size, seed=seed, sampling="classes", preprocess="none")
    order = torch.tensor(joined(load.epoch(number)))
    assert len(order) == len(label)
    by_class = target[order].bincount(minlength=5)[target.unique()]
    assert int(by_class.max() - by_class.min()) <= 1
    shown = order.bincount(minlength=len(label))
    for c in target.unique():
        own = shown[target == c]
        assert int(own.max() - own.min()) <= 1


@given(label=labels, size=sizes, world=worlds, seed=seeds, data=st.data())
def test_sampling_by_class_is_shared_and_continued(label, size, world, seed, data) -> None:
    label, size = label * 4, max(size, world)
    examples = Examples(torch.zeros(len(label), 2), torch.tensor(label), tuple("abcde"))
    options = {"batch_size": size, "seed": seed, "sampling": "classes", "preprocess": "none"}
    whole = places(Loader(examples, **options).epoch(3))
    shares = [list(Loader(examples, rank=rank, world=world, **options).epoch(3)) for rank in range(world)]
    together = [
        at for step in zip(*shares, strict=True) for at in interleaved([batch.index.tolist() for batch in step])
    ]
    assert together == [at for batch in whole for at in batch]
    start = data.draw(st.integers(0, len(whole)))
    assert places(Loader(examples, **options).epoch(3, start=start)) == whole[start:]


def interleaved(parts: list[list[int]]) -> list[int]:
    """Rows as they were before process r of n took every n-th."""
    return [parts[at % len(parts)][at // len(parts)] for at in range(sum(map(len, parts)))]


def test_sampling_by_class_differs_from_epoch_to_epoch() -> None:
    examples = Examples(torch.zeros(23, 2), torch.tensor([0] * 20 + [1] * 3), ("a", "b"))
    load = Loader(examples, batch_size=23, sampling="classes", preprocess="none")
    orders = {tuple(sorted(joined(load.epoch(number)))) for number in range(20)}
    assert len(orders) > 10
    seen = {at for order in orders for at in order}
    assert seen == set(range(23))
    assert joined(Loader(examples, sampling="classes", shuffle=False)) == list(range(23))


def test_sampling_by_group() -> None:
    masks = torch.zeros(12, 4, 5, dtype=torch.uint8)
    group = torch.tensor([0] * 9 + [1] * 3)
    examples = Examples(numbered(12).images, masks, ("background", "foreground"), group, ("cow", "dog"))
    load = Loader(examples, batch_size=12, sampling="classes")
    assert next(load.epoch(1)).group.bincount().tolist() == [6, 6]
    with pytest.raises(UsageError, match="Cannot sample by class: the examples have masks, not labels"):
        Loader(Examples(examples.images, masks, examples.classes), sampling="classes")
    with pytest.raises(UsageError, match="Did you mean 'classes'"):
        Loader(examples, sampling="class")

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from torchmcl import data
from torchmcl.data.datasets.svhn import read
from torchmcl.errors import UsageError


def test_the_real_file(real) -> None:
    svhn = data.load("svhn", directory=str(real), parts=("test",))
    raw = scipy.io.loadmat(real / "svhn/test_32x32.mat")
    assert svhn.test.images.shape == (raw["X"].shape[3], 3, 32, 32)
    assert svhn.test.images.is_contiguous()
    assert svhn.classes == tuple("0123456789")
    assert svhn.test.target[:10].tolist() == [5, 2, 1, 0, 6, 1, 9, 1, 1, 8]
    assert svhn.test.images[0, :, 0, 1].tolist() == [39, 104, 61]
    assert svhn.test.images[77, 2, 5, 9] == raw["X"][5, 9, 2, 77]
    counts = np.bincount(raw["y"].ravel(), minlength=11)
    assert svhn.test.target.bincount().tolist() == [counts[10], *counts[1:10]]
    assert svhn.preprocess == "gcn"


@pytest.mark.usefixtures("no_network")
def test_training_needs_the_training_file(real) -> None:
    if (real / "svhn/train_32x32.mat").exists():
        pytest.skip("the training file is there")
    for parts in (("train", "test"), ("train",)):
        with pytest.raises(UsageError, match=r"Cannot find svhn/train_32x32\.mat or train_32x32\.mat in "):
            data.load("svhn", directory=str(real), parts=parts)


def small(count: int = 12) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    return {"X": images, "y": (np.arange(count, dtype=np.uint8) % 10 + 1)[:, None]}


def saved(folder: Path, content: dict, **options) -> Path:
    scipy.io.savemat(folder / "test_32x32.mat", content, **options)
    return folder / "test_32x32.mat"


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_both_parts(tmp_path, compressed, kind) -> None:
    content = small() | {"y": small()["y"].astype(kind)}
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", content, do_compression=compressed)
    svhn = data.load("svhn", directory=str(tmp_path))
    for part in (svhn.train, svhn.test):
        assert part.target.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
        assert np.array_equal(part.images.numpy(), content["X"].transpose(3, 2, 0, 1))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"X": np.zeros((32, 32, 12), np.uint8)}, r"Expected X \(32, 32, 3, N\) and y \(N, 1\) in"),
        ({"X": np.zeros((32, 32, 3, 11), np.uint8)}, r"got \(32, 32, 3, 11\) and \(12, 1\)"),
        ({"X": np.zeros((32, 32, 3, 12), np.float32)}, "X is not uint8 or y has values outside 1 to 10"),
        ({"y": np.zeros((12, 1), np.uint8)}, "X is not uint8 or y has values outside 1 to 10"),
        ({"y": np.full((12, 1), 11, np.uint8)}, "X is not uint8 or y has values outside 1 to 10"),
        ({"y": np.full((12, 1), 1.5)}, "X is not uint8 or y has values outside 1 to 10"),
        ({"y": np.array([["a"]] * 12)}, "Expected"),
    ],
)
def test_what_does_not_fit(tmp_path, change, match) -> None:
    path = saved(tmp_path, small() | change)
    with pytest.raises(UsageError, match=match) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_without_labels(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"got \(32, 32, 3, 12\) and \(0,\)"):
        read(saved(tmp_path, {"X": small()["X"]}))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("part", [0, 10, 100, 0.5, 0.99])
def test_cut_short(tmp_path, compressed, part) -> None:
    path = saved(tmp_path, small(), do_compression=compressed)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole)) if isinstance(part, float) else part])
    with pytest.raises(UsageError, match=r"(The (MATLAB )?file|Expected .* bytes in) .*test_32x32.mat") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_claims_too_much(tmp_path) -> None:
    path = saved(tmp_path, small())
    whole = path.read_bytes()
    shape = np.array([32, 32, 3, 12], "<i4").tobytes()
    assert whole.count(shape) == 1
    path.write_bytes(whole.replace(shape, np.array([32, 32, 3, 2**30], "<i4").tobytes()))
    with pytest.raises(UsageError, match=r"the size of 'X' does not match its shape \(32, 32, 3, 1073741824\)"):
        read(path)


def test_some_other_file(tmp_path) -> None:
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(1000))
    with pytest.raises(UsageError, match=r"The file .* is not a level 5 MATLAB file. Save it with -v7"):
        read(path)

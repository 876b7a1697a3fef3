import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmcl import data
from torchmcl.data.datasets.cifar import CLASSES10, CLASSES100
from torchmcl.errors import UsageError

LAYOUTS = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py", 1),
    "cifar100": ("cifar-100-binary", "cifar-100-python", 2),
}


@pytest.fixture(scope="module")
def cifar10(real):
    return data.load("cifar10", directory=str(real))


def test_cifar10_is_complete(cifar10) -> None:
    assert cifar10.train.images.shape == (50_000, 3, 32, 32)
    assert cifar10.test.images.shape == (10_000, 3, 32, 32)
    assert cifar10.train.target.bincount().tolist() == [5000] * 10
    assert cifar10.test.target.bincount().tolist() == [1000] * 10
    assert cifar10.classes == CLASSES10
    assert cifar10.preprocess == "gcn"
    assert cifar10.choices == {"version": "cifar-10-batches-bin"}


def test_cifar10_has_the_published_pixels(cifar10, real) -> None:
    assert cifar10.train.target[:1].tolist() == [6]
    assert cifar10.train.images[0, 0, 0, :4].tolist() == [59, 43, 50, 68]
    assert cifar10.train.images[0, 1, 0, :4].tolist() == [62, 46, 48, 54]
    assert cifar10.test.target[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert hashlib.md5(cifar10.test.images.numpy().tobytes()).hexdigest() == "f1aa22116df97725db0e47461c45a82b"
    record = (real / "cifar-10-batches-bin/data_batch_4.bin").read_bytes()[3073 * 17 : 3073 * 18]
    assert cifar10.train.target[30_017] == record[0]
    assert cifar10.train.images[30_017, 2, 5, 9] == record[1 + 2 * 1024 + 5 * 32 + 9]


def test_cifar100(real) -> None:
    cifar100 = data.load("cifar100", directory=str(real))
    raw = np.fromfile(real / "cifar-100-binary/test.bin", np.uint8)
    assert len(cifar100.test) == len(raw) // 3074
    assert cifar100.test.target.tolist() == raw[1::3074].tolist()
    assert cifar100.test.images[3, 1, 2, 4] == raw[3 * 3074 + 2 + 1024 + 2 * 32 + 4]
    # The published order of the test set; the sample begins as it does.
    assert [cifar100.classes[c] for c in cifar100.test.target[:5]] == ["mountain", "forest", "seal", "mushroom", "sea"]
    assert cifar100.classes == CLASSES100
    for part in (cifar100.train, cifar100.test):
        assert part.target.bincount(minlength=100).unique().numel() == 1


def test_names() -> None:
    assert (len(CLASSES10), len(CLASSES100)) == (10, 100)
    assert list(CLASSES100) == sorted(set(CLASSES100))


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_binary(folder: Path, name: str, count: int = 20) -> Path:
    """A small set in the published binary layout."""
    at = folder / LAYOUTS[name][0]
    at.mkdir(parents=True)
    classes = 10 if name == "cifar10" else 100
    files = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"] if name == "cifar10" else ["train", "test"]
    for seed, file in enumerate(files):
        label = (np.arange(count) + seed) % classes
        columns = [label] if name == "cifar10" else [label // 5, label]
        np.column_stack([*columns, images(count, seed)]).astype(np.uint8).tofile(at / f"{file}.bin")
    return at


def repack(binary: Path, folder: Path, name: str, dump) -> Path:
    """The same set in the published Python layout."""
    _, python, labels = LAYOUTS[name]
    at = folder / python
    at.mkdir()
    for file in binary.glob("*.bin"):
        records = np.fromfile(file, np.uint8).reshape(-1, labels + 3072)
        columns = {"labels": 0} if name == "cifar10" else {"coarse_labels": 0, "fine_labels": 1}
        content = {"batch_label": "a batch", "data": np.ascontiguousarray(records[:, labels:])}
        content |= {key: records[:, at].tolist() for key, at in columns.items()}
        content["filenames"] = [f"image_{i}.png" for i in range(len(records))]
        (at / file.stem).write_bytes(dump(content))
    return at


def with_bytes(content: dict) -> bytes:
    return pickle.dumps({key.encode("latin-1"): value for key, value in content.items()}, 2)


DUMPS = {"bytes": with_bytes, "text": lambda content: pickle.dumps(content, 4)}


def same(one: data.DataSet, other: data.DataSet) -> None:
    assert one.classes == other.classes
    for part in ("train", "test"):
        assert one.parts[part].images.equal(other.parts[part].images)
        assert one.parts[part].target.equal(other.parts[part].target)


@pytest.mark.parametrize("dump", ["python 2", *DUMPS])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_python_version_is_the_same_set(tmp_path, name, dump, python_2) -> None:
    binary = write_binary(tmp_path / "binary", name)
    repack(binary, tmp_path, name, DUMPS.get(dump, python_2))
    python = data.load(name, directory=str(tmp_path))
    assert python.choices["version"] == LAYOUTS[name][1]
    same(data.load(name, directory=str(tmp_path / "binary")), python)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_python_version_of_the_real_set(real, tmp_path, name, python_2) -> None:
    repack(real / LAYOUTS[name][0], tmp_path, name, python_2)
    same(data.load(name, directory=str(real)), data.load(name, directory=str(tmp_path)))


def test_names_from_the_files(tmp_path) -> None:
    binary = write_binary(tmp_path / "binary", "cifar10")
    names = [f"class{c}" for c in range(10)]
    (binary / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert data.load("cifar10", directory=str(binary)).classes == tuple(names)
    python = repack(binary, tmp_path, "cifar10", with_bytes)
    (python / "batches.meta").write_bytes(pickle.dumps({b"label_names": [name.encode() for name in names]}, 2))
    assert data.load("cifar10", directory=str(python)).classes == tuple(names)
    (python / "batches.meta").write_bytes(pickle.dumps({"label_names": names[:9]}, 2))
    with pytest.raises(UsageError, match=r"Expected 10 unique class names in .*batches.meta, got 9"):
        data.load("cifar10", directory=str(python))


def refused(folder: Path, name: str, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        data.load(name, directory=str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", LAYOUTS)
def test_damaged_binary_files(tmp_path, name) -> None:
    folder = write_binary(tmp_path, name)
    file = folder / ("data_batch_3.bin" if name == "cifar10" else "train.bin")
    whole = file.read_bytes()
    record = len(whole) // 20
    file.write_bytes(whole[:-1])
    refused(tmp_path, name, rf"Expected a multiple of {record} bytes in .*{file.name}, got {len(whole) - 1}")
    file.write_bytes(b"")
    refused(tmp_path, name, rf"Expected 1 to \d+ bytes in .*{file.name}, got 0")
    bad = bytearray(whole)
    bad[2 * record + LAYOUTS[name][2] - 1] = 100
    file.write_bytes(bad)
    refused(tmp_path, name, rf"Expected labels below \d+ in .*{file.name}, got 100 in record 2")
    file.unlink()
    refused(tmp_path, name, rf"The file .*{file.name} does not exist")
    assert len(data.load(name, directory=str(tmp_path), parts=("test",)).test) == 20


def test_a_file_larger_than_the_set(tmp_path) -> None:
    folder = write_binary(tmp_path, "cifar10")
    with open(folder / "data_batch_1.bin", "r+b") as file:
        file.truncate(2**40)  # takes no room on disk
    refused(tmp_path, "cifar10", r"Expected 1 to \d+ bytes in .*data_batch_1.bin, got 1099511627776")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"labels": [0] * 19}, "Expected one label for each of the 20 images in .*data_batch_2, got 19"),
        ({"labels": [0] * 19 + [10]}, "Expected labels below 10 in .*data_batch_2, got 10 in record 19"),
        ({"labels": [0] * 19 + [-1]}, "Expected labels to be a list of labels in .*data_batch_2"),
        ({"labels": [0.5] * 20}, "Expected labels to be a list of labels in .*data_batch_2"),
        ({"labels": None}, "Expected labels to be a list of labels in .*data_batch_2"),
        ({"data": np.zeros((20, 3071), np.uint8)}, r"Expected data \(N, 3072\) uint8 in .*data_batch_2"),
        ({"data": np.zeros((20, 3072), np.float32)}, "Expected a uint8 array in .*data_batch_2"),
        ({"data": [1, 2]}, r"Expected data \(N, 3072\) uint8 in .*data_batch_2"),
        ({"data": np.zeros((0, 3072), np.uint8)}, "The pickle .*data_batch_2 is not safe"),
    ],
)
def test_damaged_python_files(tmp_path, change, match) -> None:
    folder = repack(write_binary(tmp_path / "binary", "cifar10"), tmp_path, "cifar10", with_bytes)
    content = {"data": images(20), "labels": [0] * 20} | change
    (folder / "data_batch_2").write_bytes(pickle.dumps(content, 2))
    refused(folder, "cifar10", match)


def test_a_python_file_cut_short(tmp_path, python_2) -> None:
    folder = repack(write_binary(tmp_path / "binary", "cifar10"), tmp_path, "cifar10", python_2)
    file = folder / "data_batch_2"
    file.write_bytes(file.read_bytes()[:-1])
    refused(folder, "cifar10", "The pickle .*data_batch_2 is damaged")
    file.write_bytes(file.read_bytes()[:1000])
    refused(folder, "cifar10", "The pickle .*data_batch_2 is damaged")


def test_a_malicious_file_leaves_no_mark(tmp_path) -> None:
    class Harm:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'mark')!r}, 'w').close()",)

    folder = repack(write_binary(tmp_path / "binary", "cifar10"), tmp_path, "cifar10", with_bytes)
    (folder / "data_batch_2").write_bytes(pickle.dumps({"data": Harm(), "labels": [0]}))
    refused(folder, "cifar10", r"The pickle .*data_batch_2 is not safe: it calls 'builtins\.exec'\.")
    assert not (tmp_path / "mark").exists()


def test_any_number_of_records(tmp_path) -> None:
    write_binary(tmp_path, "cifar10", count=3)
    small = data.load("cifar10", directory=str(tmp_path))
    assert (len(small.train), len(small.test)) == (15, 3)
    assert small.train.images[4].flatten().equal(torch.from_numpy(images(3, 1)[1]))


@pytest.mark.usefixtures("no_network")
def test_nothing_there(tmp_path) -> None:
    refused(tmp_path, "cifar10", "Cannot find cifar-10-batches-bin or cifar-10-batches-py or .* in ")

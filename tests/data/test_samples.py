"""A sample that is selected from the complete data set equals the sample itself, in each publisher's format."""

import random
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from torchmcl import data
from torchmcl.data import samples
from torchmcl.data.datasets.svhn import read
from torchmcl.errors import UsageError

WNIDS = ("n02124075", "n01443537")
REDUCED = {"cifar100-20000": ("train",), "svhn-10000": ("test",), "tiny-imagenet-4000": ("train", "test")}
COUNTS = {
    ("cifar100-20000", "train"): (20_000, 200),
    ("tiny-imagenet-4000", "train"): (4000, 20),
    ("tiny-imagenet-4000", "test"): (1000, 5),
}


def pixels(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def write_cifar100(folder: Path, seeds: list[int]) -> None:
    """One training image and one test image per seed."""
    (folder / "cifar-100-binary").mkdir(parents=True)
    for part, offset in (("train", 0), ("test", 1000)):
        records = [np.concatenate([[0, seed % 100], pixels(1, seed + offset).ravel()]) for seed in seeds]
        np.array(records, np.uint8).tofile(folder / f"cifar-100-binary/{part}.bin")


def write_svhn(folder: Path, seeds: list[int]) -> None:
    (folder / "svhn").mkdir(parents=True)
    images = np.concatenate([pixels(1, seed) for seed in seeds]).transpose(2, 3, 1, 0)
    content = {"X": images, "y": np.array([[seed % 10 + 1] for seed in seeds], np.uint8)}
    for part in ("train", "test"):
        scipy.io.savemat(folder / f"svhn/{part}_32x32.mat", content)


def write_tiny_imagenet(folder: Path, seeds: list[int]) -> None:
    folder = folder / "tiny-imagenet-200"
    (folder / "val/images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(WNIDS))
    for wnid in WNIDS:
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for seed in seeds:
            save(folder / f"train/{wnid}/images/{wnid}_{seed}.JPEG", seed)
    for seed in seeds:
        save(folder / f"val/images/val_{seed}.JPEG", seed)
    lines = [f"val_{seed}.JPEG\t{WNIDS[seed % 2]}\t0\t0\t63\t63\n" for seed in seeds]
    (folder / "val/val_annotations.txt").write_text("".join(lines))


def save(path: Path, seed: int) -> None:
    Image.fromarray(pixels(1, seed)[0].transpose(1, 2, 0)).save(path)


WRITERS = {"cifar100-20000": write_cifar100, "svhn-10000": write_svhn, "tiny-imagenet-4000": write_tiny_imagenet}


def load(folder: Path, name: str, **options) -> data.DataSet:
    return data.load(name.rpartition("-")[0], directory=str(folder), **options)


def same(one: data.Examples, other: data.Examples) -> bool:
    return torch.equal(one.images, other.images) and torch.equal(one.target, other.target)


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """Small data sets of the images 3, 100, 20 and 1, published as samples under the names of the real ones."""
    monkeypatch.setattr(samples, "FOLDER", tmp_path / "hashes")
    for name, parts in REDUCED.items():
        WRITERS[name](tmp_path / "sample", [3, 100, 20, 1])
        (tmp_path / "hashes" / name).mkdir(parents=True)
        for part, examples in load(tmp_path / "sample", name, in_memory=0).parts.items():
            if part in parts:
                (tmp_path / "hashes" / name / f"{part}.bin").write_bytes(b"".join(samples.hashes(examples)))
    return tmp_path


@pytest.mark.parametrize("name", WRITERS)
def test_the_complete_set_gives_the_sample(published, name) -> None:
    WRITERS[name](published / "complete", [50, 1, 2, 20, 101, 3, 10, 100])
    sample, complete = (load(published / folder, name) for folder in ("sample", "complete"))
    taken = load(published / "complete", name, sample=name)
    for part in ("train", "test"):
        expected = sample if part in REDUCED[name] else complete
        assert same(taken.parts[part], expected.parts[part]), part
    assert taken.source["sample"] == name


@pytest.mark.parametrize("name", WRITERS)
def test_missing_images(published, name) -> None:
    WRITERS[name](published / "other", [50, 1, 2, 20, 101])
    part = REDUCED[name][0]
    per_image = len(WNIDS) if name == "tiny-imagenet-4000" else 1
    match = f"^{2 * per_image} of the {4 * per_image} images of the sample {name} are not in the {part} set. Download"
    with pytest.raises(UsageError, match=match) as caught:
        load(published / "other", name, sample=name)
    assert "\n" not in str(caught.value)


def test_another_label_is_another_image(published) -> None:
    path = published / "sample/cifar-100-binary/train.bin"
    content = bytearray(path.read_bytes())
    content[1] += 1  # the fine label of the first image
    path.write_bytes(content)
    with pytest.raises(UsageError, match="1 of the 4 images"):
        load(published / "sample", "cifar100-20000", sample="cifar100-20000")


def test_resized_files(published) -> None:
    name = "tiny-imagenet-4000"
    WRITERS[name](published / "complete", [50, 1, 20, 3, 100])
    sample, taken = load(published / "sample", name, size=8), load(published / "complete", name, size=8, sample=name)
    assert taken.test.images.shape == (4, 3, 8, 8)
    assert same(taken.test, sample.test)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("cifar100-2000", "Unknown sample 'cifar100-2000'. Did you mean 'cifar100-20000'"),
        ("svhn-10000", "svhn-10000 is not a sample of digits"),
    ],
)
def test_names_that_do_not_fit(name, match) -> None:
    with pytest.raises(UsageError, match=match):
        data.load("digits", sample=name)


@pytest.mark.parametrize("name", REDUCED)
def test_published_hashes(name) -> None:
    files = {path.stem: path.read_bytes() for path in (samples.FOLDER / name).iterdir()}
    assert set(files) == set(REDUCED[name])
    for part, content in files.items():
        keys = {content[at : at + samples.BYTES] for at in range(0, len(content), samples.BYTES)}
        count, _ = COUNTS.get((name, part), (10_000, 0))
        assert len(content) == count * samples.BYTES
        assert len(keys) == count


@pytest.mark.parametrize("name", REDUCED)
def test_the_real_sample(real, name) -> None:
    parts = REDUCED[name]
    taken, whole = (load(real, name, parts=parts, sample=sample, in_memory=0) for sample in (name, None))
    for part in parts:
        examples, per_class = taken.parts[part], COUNTS.get((name, part))
        if per_class is not None:
            assert examples.target.bincount().unique().tolist() == [per_class[1]]
        if len(whole.parts[part]) == len(examples):  # only the sample is there
            assert samples.hashes(whole.parts[part]) == samples.hashes(examples)


def test_the_real_sample_of_svhn_in_a_larger_file(real, tmp_path) -> None:
    path = real / "svhn/test_32x32.mat"
    expected = load(real, "svhn-10000", parts=("test",), sample="svhn-10000").test
    raw = scipy.io.loadmat(path)
    order = np.random.default_rng(0).permutation(raw["X"].shape[3] + 500)
    images = np.concatenate([raw["X"], pixels(500, 0).transpose(2, 3, 1, 0)], axis=3)[..., order]
    labels = np.concatenate([raw["y"], np.ones((500, 1), np.uint8)])[order]
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"X": images, "y": labels})
    assert not same(read(tmp_path / "test_32x32.mat").subset(torch.arange(len(expected))), expected)
    assert same(load(tmp_path, "svhn-10000", parts=("test",), sample="svhn-10000").test, expected)


def test_the_real_sample_of_cifar100_in_a_larger_file(real, tmp_path) -> None:
    expected = load(real, "cifar100-20000", parts=("train",), sample="cifar100-20000").train
    records = np.zeros((500, 2 + 3072), np.uint8)
    records[:, 2:] = pixels(500, 0).reshape(500, -1)
    labels = np.stack([np.zeros(len(expected)), expected.target.numpy()], axis=1).astype(np.uint8)
    sample = np.concatenate([labels, expected.images.numpy().reshape(len(expected), -1)], axis=1)
    complete = np.random.default_rng(0).permutation(np.concatenate([sample, records]))
    (tmp_path / "cifar-100-binary").mkdir()
    complete.tofile(tmp_path / "cifar-100-binary/train.bin")
    assert same(load(tmp_path, "cifar100-20000", parts=("train",), sample="cifar100-20000").train, expected)


def test_the_real_sample_of_tiny_imagenet_in_a_larger_folder(real, tmp_path) -> None:
    name = "tiny-imagenet-4000"
    expected = load(real, name, sample=name, in_memory=0)
    source, folder = real / "tiny-imagenet-200", tmp_path / "tiny-imagenet-200"
    (folder / "val/images").mkdir(parents=True)
    for file in ("wnids.txt", "words.txt"):
        (folder / file).symlink_to(source / file)
    lines = (source / "val/val_annotations.txt").read_text().splitlines()
    for path in source.glob("val/images/*.JPEG"):
        (folder / "val/images" / path.name).symlink_to(path)
    for wnid in (source / "wnids.txt").read_text().split():
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for path in (source / "train" / wnid / "images").iterdir():
            (images / path.name).symlink_to(path)
        for at in (1000, 1001):  # the published names end at 499 and 9999
            (images / f"{wnid}_{at}.JPEG").symlink_to(path)
        more = f"val_{10_000 + len(lines)}.JPEG"
        (folder / "val/images" / more).symlink_to(path)
        lines.append(f"{more}\t{wnid}\t0\t0\t63\t63")
    random.Random(0).shuffle(lines)
    (folder / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    taken = load(tmp_path, name, sample=name, in_memory=0)
    for part, examples in expected.parts.items():
        assert torch.equal(taken.parts[part].target, examples.target)
        names = [[Path(path).name for path in each.images.paths] for each in (taken.parts[part], examples)]
        assert names[0] == names[1]
        assert taken.parts[part].fingerprint == examples.fingerprint

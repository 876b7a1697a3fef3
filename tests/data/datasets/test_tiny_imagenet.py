import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchmcl import data
from torchmcl.data import ImageFiles
from torchmcl.data.datasets import tiny_imagenet
from torchmcl.errors import UsageError


def test_the_real_set(real) -> None:
    folder = real / "tiny-imagenet-200"
    tiny = tiny_imagenet.load(str(real))
    ids = (folder / "wnids.txt").read_text().split()
    assert len(tiny.classes) == 200
    assert tiny.classes[:2] == ("Egyptian cat", "reel")
    assert isinstance(tiny.train.images, ImageFiles)
    assert len(tiny.train) == sum(1 for _ in folder.glob("train/*/images/*.JPEG"))
    assert len(tiny.test) == sum(1 for _ in folder.glob("val/images/*.JPEG"))
    for part in (tiny.train, tiny.test):
        assert part.target.bincount(minlength=200).unique().numel() == 1
    for path, c in list(zip(tiny.train.images.paths, tiny.train.target.tolist(), strict=True))[::97]:
        assert Path(path).parts[-3] == ids[c]
    label = dict(line.split("\t")[:2] for line in (folder / "val/val_annotations.txt").read_text().splitlines())
    for path, c in zip(tiny.test.images.paths, tiny.test.target.tolist(), strict=True):
        assert label[Path(path).name] == ids[c]


def test_real_pixels(real) -> None:
    tiny = data.load("tiny-imagenet", directory=str(real), parts=("test",), classes="Egyptian cat,goldfish")
    assert tiny.test.images.shape[1:] == (3, 64, 64)
    assert tiny.classes == ("Egyptian cat", "goldfish")
    folder = real / "tiny-imagenet-200/val"
    names = [line.split("\t")[:2] for line in (folder / "val_annotations.txt").read_text().splitlines()]
    cats = [name for name, wnid in names if wnid == "n02124075"]
    assert int((tiny.test.target == 0).sum()) == len(cats)
    expected = np.asarray(Image.open(folder / "images" / cats[0]).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(tiny.test.images[tiny.test.target == 0][0].numpy(), expected)


def test_a_known_pixel(real) -> None:
    train = data.load("tiny-imagenet", directory=str(real), parts=("train",), classes="Egyptian cat").train
    assert train.images[0, :, 0, 0].tolist() == [102, 107, 100]
    assert train.images[0, :, 63, 63].tolist() == [102, 99, 94]


@pytest.fixture
def small(tmp_path) -> Path:
    """Two classes of three images, one of them grey, and two images to test with."""
    folder = tmp_path / "tiny-imagenet-200"
    pixels = np.random.default_rng(0)
    for wnid in ("n2", "n1"):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        for i in range(3):
            shape = (64, 64) if i == 1 else (64, 64, 3)
            image = Image.fromarray(pixels.integers(0, 256, shape, dtype=np.uint8))
            image.save(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG")
    (folder / "val/images").mkdir(parents=True)
    for i in range(2):
        shutil.copy(folder / "train/n1/images/n1_0.JPEG", folder / f"val/images/val_{i}.JPEG")
    (folder / "val/val_annotations.txt").write_text("val_1.JPEG\tn1\t0\t0\t1\t1\nval_0.JPEG\tn2\t0\t0\t1\t1\n")
    (folder / "wnids.txt").write_text("n2\nn1\n")
    return folder


def test_order_and_names(small) -> None:
    tiny = data.load("tiny-imagenet", directory=str(small))
    assert tiny.classes == ("n2", "n1")
    assert tiny.train.target.tolist() == [0, 0, 0, 1, 1, 1]
    assert tiny.train.images.shape == (6, 3, 64, 64)
    assert tiny.train.images[1, 0].equal(tiny.train.images[1, 2])  # the grey one
    assert tiny.test.target.tolist() == [1, 0]
    (small / "words.txt").write_text("n0\tthing\nn1\tcrane, bird\nn2\tcrane, machine\n")
    assert data.load("tiny-imagenet", directory=str(small)).classes == ("n2", "n1")  # both would be "crane"
    (small / "words.txt").write_text("n1\theron, bird\n")
    assert data.load("tiny-imagenet", directory=str(small)).classes == ("n2", "heron")


def test_another_size(small) -> None:
    assert data.load("tiny-imagenet", directory=str(small), size=(16, 24)).test.images.shape == (2, 3, 16, 24)


@pytest.mark.parametrize(
    "line", ["val_9.JPEG\tn1", "val_0.JPEG\tn9", "val_0.JPEG", "", "../images/val_0.JPEG\tn1", "val_1.JPEG\tn1"]
)
def test_a_wrong_annotation(small, line) -> None:
    table = small / "val/val_annotations.txt"
    table.write_text(f"val_1.JPEG\tn1\n{line}\n")
    with pytest.raises(UsageError, match=r"a class in wnids.txt on line 2 of .*val_annotations.txt"):
        data.load("tiny-imagenet", directory=str(small))


def refused(small: Path, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        data.load("tiny-imagenet", directory=str(small))


def test_missing_files(small) -> None:
    (small / "val/val_annotations.txt").rename(small / "kept")
    refused(small, r"The file .*val_annotations.txt does not exist")
    shutil.rmtree(small / "train/n1/images")
    refused(small, r"There are no images \*.JPEG in .*n1/images")
    (small / "wnids.txt").write_text("n1\nn1\n")
    refused(small, "A class appears twice in .*wnids.txt")
    (small / "wnids.txt").unlink()
    refused(small, r"The file .*wnids.txt does not exist")


def test_a_damaged_image(small) -> None:
    image = small / "train/n2/images/n2_2.JPEG"
    image.write_bytes(image.read_bytes()[:700])
    refused(small, r"n2_2.JPEG cannot be read")
    assert len(data.load("tiny-imagenet", directory=str(small), parts=("test",)).test) == 2

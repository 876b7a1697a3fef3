import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchmcl import data
from torchmcl.data import ImageFiles
from torchmcl.data.datasets import image_folder
from torchmcl.errors import UsageError


def fill(root: Path, counts: dict[str, int], size=(10, 12), extension: str = "png") -> Path:
    """A folder a class; the class is in the first pixel, the number in the second."""
    for c, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = np.zeros((*size, 3), np.uint8)
            pixels[0, 0], pixels[0, 1] = c, i
            Image.fromarray(pixels).save(root / name / f"{i}.{extension}")
    return root


def load(root: Path, **options) -> data.DataSet:
    return data.load(f"folder:{root}", **options)


def refused(root: Path, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        load(root)
    assert "\n" not in str(caught.value)


def test_split_of_its_own(tmp_path) -> None:
    pets = load(fill(tmp_path, {"cat": 10, "dog": 20, "eel": 1}))
    assert pets.classes == ("cat", "dog", "eel")
    assert pets.train.target.bincount().tolist() == [8, 16, 1]
    assert pets.test.target.bincount(minlength=3).tolist() == [2, 4, 0]
    assert pets.train.images.shape == (25, 3, 10, 12)
    seen = set()
    for part in (pets.train, pets.test):
        assert part.images[:, 0, 0, 0].tolist() == part.target.tolist()
        seen |= {(int(c), int(i)) for c, i in part.images[:, 0, 0, :2]}
    assert len(seen) == 31
    assert pets.choices["split_seed"] == 0
    other = load(tmp_path, seed=1)
    assert not other.test.images.equal(pets.test.images)
    assert load(tmp_path, parts=("test",)).test.images.equal(pets.test.images)


@pytest.mark.parametrize("test", ["test", "val"])
def test_published_parts(tmp_path, test) -> None:
    fill(tmp_path / "train", {"cat": 3, "dog": 4})
    fill(tmp_path / test, {"dog": 2}, size=(30, 40))
    pets = load(tmp_path)
    assert (len(pets.train), len(pets.test), pets.validation) == (7, 2, None)
    assert pets.test.target.tolist() == [1, 1]
    assert pets.test.images.shape == (2, 3, 10, 12)


def test_all_three_parts(tmp_path) -> None:
    for part, count in {"train": 3, "val": 2, "test": 1}.items():
        fill(tmp_path / part, {"cat": count, "dog": count})
    pets = load(tmp_path)
    assert [len(pets.parts[part]) for part in ("train", "validation", "test")] == [6, 4, 2]
    assert list(load(tmp_path, parts=("test",)).parts) == ["test"]


def test_train_may_be_a_class(tmp_path) -> None:
    assert load(fill(tmp_path, {"bus": 5, "train": 5})).classes == ("bus", "train")


def test_size(tmp_path) -> None:
    fill(tmp_path, {"cat": 3}, size=(10, 12))
    fill(tmp_path, {"dog": 5}, size=(20, 8))
    assert load(tmp_path).train.images.shape[1:] == (3, 20, 8)
    assert load(tmp_path, size=16).train.images.shape[1:] == (3, 16, 16)
    assert load(tmp_path, size=(5, 7)).train.images.shape[1:] == (3, 5, 7)
    assert load(tmp_path).choices["size"] == [20, 8]


def test_what_is_ignored(tmp_path) -> None:
    fill(tmp_path, {"cat": 5, "dog": 5})
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "README.txt").touch()
    (tmp_path / "cat/.DS_Store").touch()
    (tmp_path / "cat/._1.png").touch()
    (tmp_path / "cat/notes.txt").write_text("nice cats")
    (tmp_path / "dog/.thumbnails").mkdir()
    (tmp_path / "dog/.thumbnails/a.png").touch()
    fill(tmp_path / "dog", {"more": 5}, extension="JPG")
    pets = load(tmp_path)
    assert pets.classes == ("cat", "dog")
    assert len(pets.train) + len(pets.test) == 15


def test_grey_among_colour(tmp_path) -> None:
    fill(tmp_path, {"cat": 5, "dog": 5})
    Image.new("L", (12, 10), 7).save(tmp_path / "cat/grey.png")
    images = load(tmp_path).train.images, load(tmp_path).test.images
    assert sum(int((part == 7).flatten(1).all(1).sum()) for part in images) == 1


def test_what_is_no_set(tmp_path) -> None:
    refused(
        tmp_path / "nowhere",
        "The folder '.*nowhere' does not exist. Pass a folder with one subfolder of images per class",
    )
    refused(tmp_path, "Expected at least 2 class folders in .*, got 0")
    fill(tmp_path, {"cat": 3})
    refused(tmp_path, "Expected at least 2 class folders in .*, got 1")
    (tmp_path / "dog").mkdir()
    refused(tmp_path, r"1 class folder without images: dog\. .* --skip-unreadable")
    (tmp_path / "dog/notes.txt").touch()
    refused(tmp_path, r"1 class folder without images: dog \(1 other file\)\.")
    (tmp_path / "dog/a.png").write_text("text")
    refused(tmp_path, r"1 unreadable file: dog/a.png \(not an image\)")


def test_a_class_that_was_never_trained(tmp_path) -> None:
    fill(tmp_path / "train", {"cat": 3, "dog": 4})
    fill(tmp_path / "test", {"cat": 3, "eel": 4})
    refused(tmp_path, "The classes eel in .*test are not in the training set")


def test_a_damaged_image_is_named(tmp_path) -> None:
    fill(tmp_path, {"cat": 5, "dog": 5})
    image = tmp_path / "dog/3.png"
    image.write_bytes(image.read_bytes()[:45])
    refused(tmp_path, r"dog/3.png \(image file is truncated")
    pets = load(tmp_path, skip_unreadable=True)
    assert len(pets.train) + len(pets.test) == 9


def mess(root: Path) -> Path:
    """Photographs as they come from a camera, a network drive and three years of copying."""
    rng = np.random.default_rng(0)
    for name in ("café ☕", "日本", "plain"):
        for folder in (root / name, root / name / "nested" / "dér", root / name / "@eaDir" / "1.jpg"):
            folder.mkdir(parents=True)
            for i in range(6):
                Image.fromarray(rng.integers(0, 255, (9 + i, 12, 3), dtype=np.uint8)).save(folder / f"ü{i}.jpg")
    for folder in ("@eaDir", ".thumbnails", "#recycle", "empty", "nothing left"):
        (root / folder).mkdir()
    image = rng.integers(0, 255, (10, 12, 4), dtype=np.uint8)
    Image.fromarray(image, "CMYK").save(root / "plain" / "cmyk.jpg")
    Image.fromarray(image, "RGBA").save(root / "plain" / "alpha.png")
    (root / "plain" / "cut.jpg").write_bytes((root / "plain" / "ü5.jpg").read_bytes()[:400])
    for name in ("plain/._ü0.jpg", "plain/.hidden.png", "plain/Thumbs.db", "日本/phone.heic", "empty/notes.txt"):
        (root / name).write_bytes(b"bytes")
    for name in ("日本/zero.jpg", "nothing left/zero.jpg"):
        (root / name).touch()
    return root


def test_everything_that_cannot_be_used_is_named_at_once(tmp_path) -> None:
    with pytest.raises(UsageError) as caught:
        load(mess(tmp_path))
    said = str(caught.value)
    assert "has 1 class folder without images: empty (1 other file); 3 unreadable files: " in said
    for name in ("plain/cut.jpg (Truncated File Read)", "日本/zero.jpg (empty)", "nothing left/zero.jpg (empty)"):
        assert name in said
    assert "eaDir" not in said
    assert said.endswith("leave them out with --skip-unreadable (data_skip_unreadable=True).")


def test_a_long_list_is_cut(tmp_path) -> None:
    fill(tmp_path, {"cat": 3, "dog": 3})
    for i in range(500):
        (tmp_path / "cat" / f"{'x' * 40}-{i}.jpg").touch()
    with pytest.raises(UsageError, match=r"500 unreadable files: .* \(empty\), …\. .*--skip-unreadable"):
        load(tmp_path)


def test_the_rest_is_used_with_one_option(tmp_path, capsys) -> None:
    pets = load(mess(tmp_path), skip_unreadable=True)
    assert pets.classes == ("café ☕", "plain", "日本")
    assert len(pets.train) + len(pets.test) == 3 * 12 + 2
    warning = capsys.readouterr().err
    assert warning.startswith("warning: folder:")
    assert "cut.jpg" in warning
    assert warning.count("\n") == 1
    sizes, ignored = pets.notes
    assert sizes == "Sizes: 9 x 12 to 14 x 12 pixels (height x width), resized to 11 x 12"
    assert pets.train.images.shape[2:] == (11, 12)
    for name in ("@eaDir/", ".thumbnails/", "#recycle/", "plain/@eaDir/", "1 file .db", "1 file .heic"):
        assert name in ignored
    assert load(tmp_path, skip_unreadable=True).train.fingerprint == pets.train.fingerprint


def test_folders_that_cannot_be_listed_are_named(tmp_path, monkeypatch) -> None:
    fill(tmp_path, {"cat": 3, "dog": 3, "eel": 3})
    (tmp_path / "dog" / "more").mkdir()
    listed, closed = os.scandir, {str(tmp_path / "eel"), str(tmp_path / "dog" / "more")}

    def refuse(path):
        if str(path) in closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    refused(tmp_path, r"has 2 unreadable folders: dog/more \(Permission denied\), eel \(Permission denied\)\. Repair")
    assert load(tmp_path, skip_unreadable=True).classes == ("cat", "dog")


def test_images_beside_the_class_folders_are_mentioned(tmp_path) -> None:
    fill(tmp_path, {"cat": 3, "dog": 3})
    (tmp_path / "loose.jpg").write_bytes(b"bytes")
    assert load(tmp_path).notes[-1] == "Ignored: 1 image beside the class folders"


def test_a_test_set_without_a_readable_class(tmp_path) -> None:
    for part in ("train", "test"):
        fill(tmp_path / part, {"cat": 3, "dog": 3, "eel": 3})
    for i in range(3):
        (tmp_path / "train" / "eel" / f"{i}.png").write_text("text")
    refused(tmp_path, "3 unreadable files: train/eel/0.png")
    pets = load(tmp_path, skip_unreadable=True)
    assert pets.classes == ("cat", "dog")
    assert pets.test.target.tolist() == [0, 0, 0, 1, 1, 1]
    fill(tmp_path / "train", {"dog": 3})
    for i in range(3):
        (tmp_path / "train" / "dog" / f"{i}.png").write_bytes(b"")
    with pytest.raises(UsageError, match="Expected at least 2 classes with readable images"):
        load(tmp_path, skip_unreadable=True)


def test_the_option_is_of_folders() -> None:
    with pytest.raises(UsageError, match=r"applies to folder:PATH only, not to digits"):
        data.load("digits", skip_unreadable=True)


def test_too_large_for_memory(tmp_path) -> None:
    pets = load(fill(tmp_path, {"cat": 5, "dog": 5}), in_memory=1e-6)
    assert isinstance(pets.train.images, ImageFiles)
    batch = next(data.Loader(pets.train, preprocess="none").epoch())
    assert batch.x[:, 0, 0, 0].tolist() == batch.target.tolist()


def test_only_what_is_chosen_is_read(tmp_path) -> None:
    fill(tmp_path, {"cat": 10, "dog": 10})
    (tmp_path / "eel").mkdir()
    (tmp_path / "eel/0.png").write_text("not an image")
    assert len(load(tmp_path, classes="cat,dog", limit=4, size=8).train) == 4


def test_the_median_is_of_images_all_over_the_set(tmp_path, monkeypatch) -> None:
    fill(tmp_path, {"cat": 20}, size=(10, 10))
    fill(tmp_path, {"dog": 30}, size=(20, 20))
    monkeypatch.setattr(image_folder, "SIZE_SAMPLE", 5)
    assert load(tmp_path).train.images.shape[2:] == (20, 20)

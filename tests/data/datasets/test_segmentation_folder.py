import numpy as np
import pytest
import torch
from PIL import Image

from torchmcl import data
from torchmcl.errors import UsageError


def write(root, name, size=(20, 30), mask=None, mode="L"):
    image, path = root / "images" / f"{name}.jpg", root / "masks" / f"{name}.png"
    image.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(name))
    Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(image)
    values = np.zeros(size, dtype=np.uint8) if mask is None else np.asarray(mask, dtype=np.uint8)
    Image.fromarray(values).convert(mode).save(path)


@pytest.fixture
def root(tmp_path):
    half = np.zeros((20, 30))
    half[:, 15:] = 1
    for group in ("cats", "dogs"):
        for i in range(5):
            write(tmp_path, f"{group}/{i}", mask=half * (1 + (group == "dogs")))
    return tmp_path


def test_groups_are_folders_and_pixels_are_classes(root):
    found = data.load(f"segmentation-folder:{root}", size=(10, 16))
    assert found.train.images.shape == (8, 3, 10, 16)
    assert found.train.target.shape == (8, 10, 16)
    assert found.train.groups == ("cats", "dogs")
    assert found.train.classes == ("0", "1", "2")
    assert found.train.group.bincount().tolist() == [4, 4]
    for target, group in zip(found.test.target, found.test.group, strict=True):
        assert target[:, :8].max() == 0
        assert target[:, 8:].unique().tolist() == [int(group) + 1]


def test_black_and_white_are_two_classes(tmp_path):
    for i in range(3):
        write(tmp_path, str(i), mask=np.eye(20, 30) * 255)
    found = data.load(f"segmentation-folder:{tmp_path}")
    assert found.classes == ("background", "foreground")
    assert found.train.groups == (".",)
    assert torch.cat([found.train.target, found.test.target]).unique().tolist() == [0, 1]
    assert found.train.images.shape[2:] == (20, 30)


def test_names_of_classes(root):
    (root / "classes.txt").write_text("nothing\ncat\ndog\n")
    assert data.load(f"segmentation-folder:{root}").classes == ("nothing", "cat", "dog")
    (root / "classes.txt").write_text("nothing\ncat\n")
    with pytest.raises(UsageError, match="Expected at least 3 unique names"):
        data.load(f"segmentation-folder:{root}")


def test_what_does_not_fit(root):
    Image.new("L", (31, 20)).save(root / "masks" / "cats" / "0.png")
    with pytest.raises(UsageError, match=r"The mask .* has size \(20, 31\), but .* has size \(20, 30\)"):
        data.load(f"segmentation-folder:{root}")
    Image.new("RGB", (30, 20)).save(root / "masks" / "cats" / "0.png")
    with pytest.raises(UsageError, match="one 8-bit channel"):
        data.load(f"segmentation-folder:{root}")
    (root / "masks" / "cats" / "0.png").unlink()
    with pytest.raises(UsageError, match="has no mask"):
        data.load(f"segmentation-folder:{root}")
    with pytest.raises(UsageError, match="images and masks"):
        data.load(f"segmentation-folder:{root}/nothing")

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchmcl import data
from torchmcl.data.datasets import icoseg
from torchmcl.errors import UsageError


@pytest.fixture(scope="module")
def whole(real):
    return data.load("icoseg", directory=str(real))


def test_the_real_set(whole, real) -> None:
    """449 of 643 images, of 36 of the 38 groups."""
    sizes = Counter()
    for path in real.glob("icoseg/images/*/*.jpg"):
        with Image.open(path) as image:
            sizes[path.parent.name] += image.height >= 300 and image.width >= 500
    assert sum(sizes.values()) == len(whole.train) + len(whole.test) == 449
    groups = {name: count for name, count in sizes.items() if count}
    assert (len(sizes), len(groups)) == (38, 36)
    assert whole.train.groups == whole.test.groups == tuple(sorted(groups))
    for c, name in enumerate(whole.train.groups):
        test, train = (int((part.group == c).sum()) for part in (whole.test, whole.train))
        assert test + train == groups[name]
        assert abs(test - groups[name] / 5) <= 0.5 or test == 1
        assert train >= 1
    assert whole.choices == {
        "images": "449 of 643, at least 300x500",
        "split": "a fifth of each group held out for testing",
        "split_seed": 0,
    }
    assert whole.classes == ("background", "foreground")


def test_real_pixels(whole, real) -> None:
    for part in (whole.train, whole.test):
        assert part.images.shape[1:] == (3, 75, 125)
        assert part.images.dtype == part.target.dtype == torch.uint8
        assert part.target.shape[1:] == (75, 125)
        assert part.target.unique().tolist() == [0, 1]
    # One image looked up by its pixels, its mask by its name.
    bear = whole.train.groups.index("brown_bear") if "brown_bear" in whole.train.groups else 0
    group = real / "icoseg/images" / whole.train.groups[bear]
    every = torch.cat([whole.train.images, whole.test.images])
    masks = torch.cat([whole.train.target, whole.test.target])
    found = 0
    for path in sorted(group.glob("*.jpg"))[:3]:
        with Image.open(path) as image:
            if image.height < 300 or image.width < 500:
                continue
            pixels = np.asarray(image.resize((125, 75), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
        at = (every == torch.from_numpy(pixels.copy())).flatten(1).all(1).nonzero()[:, 0]
        assert len(at) == 1
        mask = np.asarray(Image.open(real / "icoseg/ground_truth" / group.name / f"{path.stem}.png")).astype(np.uint8)
        rows = ((np.arange(75) + 0.5) * mask.shape[0] / 75).astype(int)
        columns = ((np.arange(125) + 0.5) * mask.shape[1] / 125).astype(int)
        assert np.array_equal(masks[at[0]].numpy(), mask[rows][:, columns])
        found += 1
    assert found


@pytest.fixture
def small(tmp_path) -> Path:
    """Two groups: five images that are large enough and one that is not, and one alone."""
    folder = tmp_path / "icoseg"
    random = np.random.default_rng(0)
    for group, sizes in {"a b, c": [(300, 500)] * 5 + [(299, 500)], "d": [(301, 502)], "e": [(500, 300)]}.items():
        for kind in ("images", "ground_truth"):
            (folder / kind / group).mkdir(parents=True)
        for i, size in enumerate(sizes):
            blocks = random.integers(0, 256, (size[0] // 50, size[1] // 50, 3), dtype=np.uint8)
            Image.fromarray(blocks).resize(size[::-1]).save(folder / "images" / group / f"{i}.jpg")
            mask = Image.fromarray(random.integers(0, 2, (6, 10), dtype=np.uint8) * 255).resize(size[::-1], 0)
            mask.convert("1").save(folder / "ground_truth" / group / f"{i}.png")
    return folder


def test_splits_and_groups(small) -> None:
    seen = set()
    for seed in range(12):
        few = icoseg.load(str(small), seed=seed)
        assert few.train.groups == ("a b, c", "d")
        assert few.train.group.tolist() == [0, 0, 0, 0, 1]  # of one image, none is for the test
        assert few.test.group.tolist() == [0]
        assert few.choices["split_seed"] == seed
        seen.add(few.test.images.numpy().tobytes())
        again = icoseg.load(str(small), ("test",), seed=seed)
        assert again.test.images.equal(few.test.images)
        assert again.test.target.equal(few.test.target)
    assert len(seen) > 2


def test_groups_are_what_is_chosen_and_held_out(small) -> None:
    few = data.load("icoseg", directory=str(small), classes="a b, c", validation=0.3)
    assert few.train.groups == ("a b, c",)
    assert few.classes == ("background", "foreground")
    assert (len(few.train), len(few.validation), len(few.test)) == (3, 1, 1)
    assert few.validation.target.shape == (1, 75, 125)
    swapped = data.load("icoseg", directory=str(small), classes=["d", "a b, c"], parts=("train",), size=(30, 50))
    assert swapped.train.group.tolist() == [1, 1, 1, 1, 0]
    assert swapped.train.target.shape == (5, 30, 50)


def refused(small: Path, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        data.load("icoseg", directory=str(small))
    assert "\n" not in str(caught.value)


def test_masks_that_do_not_fit(small) -> None:
    mask = small / "ground_truth/d/0.png"
    Image.new("1", (501, 301)).save(mask)
    refused(small, r"The mask .*0.png has size \(301, 501\), but .*0.jpg has size \(301, 502\)")
    Image.fromarray(np.tile(np.arange(3, dtype=np.uint8), (301, 168))[:, :502]).save(mask)
    refused(small, r"The mask .*0.png has 3 different values")
    mask.write_bytes(mask.read_bytes()[:60])
    refused(small, r"0.png cannot be read")
    mask.unlink()
    refused(small, r"The image .*0.jpg has no mask. Add .*0.png")


@pytest.mark.parametrize("kind", ["L", "P", "RGB"])
def test_other_kinds_of_masks(small, kind) -> None:
    before = icoseg.load(str(small)).train.target
    for path in small.glob("ground_truth/*/*.png"):
        Image.open(path).convert(kind).save(path)
    assert icoseg.load(str(small)).train.target.equal(before)


def test_a_damaged_image(small) -> None:
    image = small / "images/d/0.jpg"
    image.write_bytes(image.read_bytes()[:1500])
    refused(small, r"0.jpg cannot be read")


@pytest.mark.usefixtures("no_network")
def test_nothing_there(small) -> None:
    for path in small.glob("images/*/*.jpg"):
        if path.parent.name != "e":
            path.unlink()
    refused(small, "All images in .* are smaller than 300x500 pixels")
    shutil.rmtree(small / "images")
    refused(small, r"There are no images in .*icoseg. Put images/GROUP/\*.jpg and ground_truth/GROUP/\*.png there")
    shutil.rmtree(small)
    refused(small.parent, "Cannot find icoseg or iCoseg in .*, and no download is available")

import subprocess
import sys

import pytest

from torchmcl import data
from torchmcl.errors import UsageError


def test_names() -> None:
    images = ("digits", "digits-masks", "cifar10", "cifar100", "svhn", "tiny-imagenet", "icoseg")
    numbers = ("diabetes", "linnerud", "boston-housing", "auto-mpg", "three-modes", "grouped-modes")
    assert (*images, *numbers) == data.NAMES
    assert all(about and "\n" not in about for about in data.ABOUT.values())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cifar", "Did you mean 'cifar10'"),
        ("folder", "Did you mean 'folder:PATH'"),
        ("npz:", "Did you mean 'npz:PATH'"),
    ],
)
def test_a_name_that_is_none(name, hint) -> None:
    with pytest.raises(
        UsageError,
        match=f"Unknown data set '{name}'. {hint}.*, folder:PATH, segmentation-folder:PATH, npz:PATH",
    ):
        data.load(name)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"parts": ()}, "Expected parts to be train, test or both, got none"),
        ({"parts": ("train", "validation")}, "Expected parts to be train, test or both, got train, validation"),
        ({"seed": -1}, "Expected seed >= 0, got -1"),
        ({"size": 32}, "Cannot resize digits to 32"),
        ({"limit": 0}, "Expected limit >= 1"),
    ],
)
def test_options_that_are_none(options, match) -> None:
    with pytest.raises(UsageError, match=match):
        data.load("digits", **options)


@pytest.mark.parametrize("size", [0, (32, 0), 10**6])
def test_a_size_that_is_none(size, tmp_path) -> None:
    with pytest.raises(UsageError, match="Expected a height and width between 1 and 10,000 pixels"):
        data.load(f"folder:{tmp_path}", size=size)


def test_a_folder_of_data_that_is_none(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"The data folder '.*nowhere' does not exist"):
        data.load("cifar10", directory=str(tmp_path / "nowhere"))


def test_importing_it_is_light() -> None:
    code = "import sys, torchmcl.data; print(*{'scipy', 'sklearn', 'pooch', 'PIL', 'lightning'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


@pytest.mark.parametrize("name", data.NAMES)
def test_every_real_set_gives_batches(real, name) -> None:
    few = data.load(name, directory=str(real), parts=("test",))
    size = min(16, len(few.test))
    preprocess = "none" if few.test.continuous else few.preprocess  # tables are standardised by their training set
    batch = next(data.Loader(few.test, batch_size=size, shuffle=False, preprocess=preprocess).epoch())
    assert batch.x.shape == (size, *few.test.images.shape[1:])
    assert batch.x.isfinite().all()
    if not few.test.continuous:
        assert batch.target.max() < len(few.classes)
    else:
        assert batch.target.dtype.is_floating_point

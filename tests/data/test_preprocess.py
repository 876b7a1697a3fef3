import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from torchmcl.data import preprocess
from torchmcl.errors import UsageError


def slow_global_contrast(images: np.ndarray) -> np.ndarray:
    out = []
    for image in images.astype(np.float64):
        image = image - image.mean()
        rms = np.sqrt((image**2).mean())
        out.append(image / (1 if rms < 1e-8 else rms))
    return np.stack(out)


@given(seed=st.integers(0, 10_000), B=st.integers(1, 4), C=st.sampled_from([1, 3]), H=st.integers(1, 9))
def test_global_contrast_against_a_loop(seed, B, C, H) -> None:
    x = np.random.default_rng(seed).integers(0, 256, (B, C, H, 7), dtype=np.uint8)
    for given_ in (torch.from_numpy(x), torch.from_numpy(x).double(), torch.from_numpy(x).float()):
        found = preprocess.global_contrast(given_)
        assert found.dtype == torch.float32
        assert_close(found, torch.from_numpy(slow_global_contrast(x)).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 3, 224, 224), (1, 3, 500, 333), (1, 1, 8, 8)])
@pytest.mark.parametrize("value", [0, 1, 37, 201, 255])
def test_an_even_image_is_zero_at_any_size(shape, value) -> None:
    assert preprocess.global_contrast(torch.full(shape, value, dtype=torch.uint8)).eq(0).all()


def test_one_image_does_not_depend_on_the_others() -> None:
    x = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert_close(preprocess.global_contrast(x)[2:3], preprocess.global_contrast(x[2:3]))


@pytest.mark.parametrize("name", preprocess.NAMES)
def test_memory_format_is_kept(name) -> None:
    x = torch.zeros(2, 3, 8, 8, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    assert preprocess.get(name)(x).is_contiguous(memory_format=torch.channels_last)
    assert preprocess.get(name)(x.contiguous()).is_contiguous()


def test_scale_and_none() -> None:
    x = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert_close(preprocess.scale(x), torch.tensor([[-1.0, -0.6, 1.0]]))
    assert_close(preprocess.none(x), torch.tensor([[0.0, 51.0, 255.0]]))


def test_a_name_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"Unknown preprocessing 'gnc'. Did you mean .* gcn, scale, none"):
        preprocess.get("gnc")


@given(
    seed=st.integers(0, 10_000),
    before=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    after=st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_resize_equals_pillow(seed, before, after) -> None:
    """Pixels differ by at most one level, whether the image grows or shrinks."""
    x = np.random.default_rng(seed).integers(0, 256, (*before, 3), dtype=np.uint8)
    expected = np.asarray(Image.fromarray(x).resize((after[1], after[0]), Image.Resampling.BICUBIC))
    found = preprocess.resize(torch.from_numpy(x).permute(2, 0, 1)[None], *after)[0].permute(1, 2, 0)
    assert np.abs(found.numpy() - expected.astype(np.float32)).max() <= 1
    assert found.frac().eq(0).all()


def test_steps_are_applied_in_order() -> None:
    x = torch.randint(0, 256, (2, 1, 5, 7), dtype=torch.uint8)
    steps = preprocess.get("rgb+resize:6x4+normalize:1,2,3/4,5,8")
    expected = (preprocess.resize(x.expand(-1, 3, -1, -1), 6, 4) - torch.tensor([1, 2, 3]).view(3, 1, 1)) / (
        torch.tensor([4, 5, 8]).view(3, 1, 1)
    )
    assert_close(steps(x), expected)
    assert_close(preprocess.get("normalize:127/128")(x), (x.float() - 127) / 128)


@pytest.mark.parametrize(
    "name",
    ["resize:4", "resize:0x4", "resize:4x99999", "resize:axb", "normalize:1", "normalize:1/0", "normalize:nan/1"],
)
def test_steps_that_are_not_complete(name) -> None:
    with pytest.raises(UsageError, match="Expected resize:HEIGHTxWIDTH or normalize:MEAN/STD"):
        preprocess.get(name)
    with pytest.raises(UsageError, match="Unknown preprocessing 'gnc'"):
        preprocess.get(f"gnc+{name}")


@pytest.mark.parametrize("size", [1, 3, 64])
def test_standardize_is_fitted_batch_by_batch(size):
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(size)) * torch.tensor([1e-3, 1.0, 1e4]) + 1e5
    x[:, 1] = 7  # constant
    name = preprocess.fitted("standardize", x.split(size))
    found = preprocess.get(name)(x).double()
    mean, std = x.double().mean(0), x.double().std(0, correction=0)
    expected = (x.double() - mean) / torch.where(std > 1e-6 * mean.abs(), std, 1.0)
    assert float((found - expected)[:, 1:].abs().max()) < 1e-4
    assert preprocess.fitted("gcn", []) == "gcn"
    images = torch.rand(8, 2, 4, 4)
    scaled = preprocess.get(preprocess.fitted("standardize", [images]))(images)
    torch.testing.assert_close(scaled.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.square().mean((0, 2, 3)), torch.ones(2), atol=1e-4, rtol=0)


def test_standardize_needs_a_training_set():
    for name in ("standardize", "rgb+standardize"):
        with pytest.raises(UsageError, match="standardize depends on the training set"):
            preprocess.get(name)
    assert preprocess.split_whitening("standardize") == ("standardize", False)
    with pytest.raises(UsageError, match="taken"):

        @preprocess.register
        def standardize(x):
            return x

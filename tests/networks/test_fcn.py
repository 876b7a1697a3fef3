import pytest
import torch
from torch.nn import functional as F

from torchmcl.networks import fcn


def test_parameters() -> None:
    weights = 16 * (3 * 128 + 128 * 256 + 256 * 128 + 128 * 3)
    assert sum(p.numel() for p in fcn(3).parameters()) == weights + 2 * (128 + 256 + 128) + 3


def test_icoseg_images() -> None:
    network, x = fcn(3, width=4), torch.randn(2, 3, 75, 125)
    low = network.stem(x)
    assert low.shape == (2, 4, 37, 62)
    assert network.body(low).shape == (2, 3, 72, 124)
    assert network(x).shape == (2, 3, 75, 125)


def test_upsampling_is_bilinear() -> None:
    network, x = fcn(3, width=4).eval(), torch.randn(2, 3, 75, 125)
    expected = F.interpolate(network.body(network.stem(x)), size=(75, 125), mode="bilinear")
    torch.testing.assert_close(network(x), expected)


def test_nothing_to_upsample_at_a_multiple_of_4() -> None:
    network, x = fcn(3, width=4).eval(), torch.randn(2, 3, 32, 64)
    assert torch.equal(network(x), network.body(network.stem(x)))


def test_last_stage_is_the_decoder() -> None:
    network = fcn(3, width=4, cut="last_stage")
    assert network.stem(torch.randn(2, 3, 75, 125)).shape == (2, 8, 18, 31)
    assert network.features == 8


@pytest.mark.parametrize("shift", [4, 8])
def test_moves_with_the_image(shift: int) -> None:
    network, x = fcn(3, width=4).eval(), torch.randn(1, 3, 64, 64)
    moved = network(x.roll((shift, shift), dims=(2, 3)))
    inner = slice(24, 40)  # far from the borders, which the roll wraps
    torch.testing.assert_close(
        moved[..., inner, inner], network(x).roll((shift, shift), dims=(2, 3))[..., inner, inner]
    )

import pytest
import torch
from torch import nn

from torchmcl.networks.layers import convolution, head, scale_channels, split


@pytest.mark.parametrize(("size", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (4, 2)])
def test_convolution_divides_the_map_by_its_stride(size: int, stride: int) -> None:
    block = nn.Sequential(*convolution(3, 5, size, stride=stride))
    assert block(torch.randn(2, 3, 16, 24)).shape == (2, 5, 16 // stride, 24 // stride)


def test_convolution_takes_groups_and_activation() -> None:
    conv, _, activation = convolution(4, 4, groups=4, activation=nn.ReLU6)
    assert conv.groups == 4
    assert isinstance(activation, nn.ReLU6)


def test_head_is_the_mean_over_the_map() -> None:
    pool, flatten, linear = head(6, 3)
    x = torch.randn(2, 6, 5, 7)
    torch.testing.assert_close(linear(flatten(pool(x))), linear(x.mean(dim=(2, 3))))


@pytest.mark.parametrize("published", [16, 24, 64, 192, 1280])
def test_scaled_is_the_published_width_at_the_published_size(published: int) -> None:
    for first in (32, 64, 192):
        assert scale_channels(published, first, first) == published
        assert scale_channels(published, 1, first) == max(1, round(published / first))


def test_split_places() -> None:
    low, middle, high = ([nn.Linear(4, 4) for _ in range(count)] for count in (1, 2, 3))
    exchange = split(low, middle, high, cut="exchange", features=(4, 5))
    last_stage = split(low, middle, high, cut="last_stage", features=(4, 5))
    assert (len(exchange.stem), len(exchange.body), exchange.features) == (1, 5, 4)
    assert (len(last_stage.stem), len(last_stage.body), last_stage.features) == (3, 3, 5)

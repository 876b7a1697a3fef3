from math import sqrt

import pytest
import torch
from torch import nn

from torchmcl.networks.initialization import fan_in, fan_out, glorot_uniform, he_normal

LAYERS = [
    nn.Conv2d(8, 6, 3),
    nn.Conv2d(8, 4, 1),
    nn.Conv2d(8, 8, 3, groups=8),
    nn.Conv2d(8, 12, 3, groups=4),
    nn.ConvTranspose2d(8, 6, 4),
    nn.ConvTranspose2d(8, 6, 4, stride=2),
    nn.ConvTranspose2d(8, 4, 4, stride=2, groups=2),
]


def of_ones(layer: nn.Module) -> nn.Module:
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_fan_in_counts_what_an_inner_output_sums(layer: nn.Module) -> None:
    outputs = of_ones(layer)(torch.ones(1, 8, 16, 16))
    height, width = outputs.shape[2:]
    assert outputs[0, 0, height // 2, width // 2] == fan_in(layer)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_fan_out_counts_what_an_inner_input_feeds(layer: nn.Module) -> None:
    x = torch.ones(1, 8, 16, 16, requires_grad=True)
    of_ones(layer)(x).sum().backward()
    assert x.grad[0, 0, 8, 8] == fan_out(layer)


def test_fans_of_linear() -> None:
    assert (fan_in(nn.Linear(7, 3)), fan_out(nn.Linear(7, 3))) == (7, 3)


@pytest.mark.parametrize(
    ("layer", "fan", "count"),
    [
        (nn.Conv2d(32, 64, 3), "in", 32 * 9),
        (nn.Conv2d(32, 64, 3), "out", 64 * 9),
        (nn.Conv2d(512, 512, 3, groups=512), "out", 9),
        (nn.ConvTranspose2d(64, 32, 4, stride=2), "in", 64 * 4),
        (nn.Linear(512, 10), "in", 512),
        (nn.Linear(512, 10), "out", 512),
    ],
)
def test_he_standard_deviation(layer: nn.Module, fan: str, count: int) -> None:
    torch.manual_seed(0)
    assert he_normal(layer, fan=fan) is layer
    assert layer.weight.std().item() == pytest.approx(sqrt(2 / count), rel=0.05)
    assert layer.weight.mean().abs() < 0.1 * layer.weight.std()
    assert not layer.bias.any()


@pytest.mark.parametrize(
    ("layer", "total"), [(nn.Conv2d(32, 64, 3), 96 * 9), (nn.Linear(512, 10), 522), (nn.Linear(40, 200), 240)]
)
def test_glorot_is_uniform(layer: nn.Module, total: int) -> None:
    torch.manual_seed(0)
    assert glorot_uniform(layer) is layer
    assert layer.weight.std().item() == pytest.approx(sqrt(2 / total), rel=0.05)
    assert layer.weight.abs().max().item() == pytest.approx(sqrt(6 / total), rel=0.01)
    assert not layer.bias.any()


def test_glorot_agrees_with_torch_where_torch_counts_right() -> None:
    ours, theirs = nn.Conv2d(8, 16, 3), nn.Conv2d(8, 16, 3)
    torch.manual_seed(0)
    glorot_uniform(ours)
    torch.manual_seed(0)
    nn.init.xavier_uniform_(theirs.weight)
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_he_keeps_the_signal_through_many_layers() -> None:
    torch.manual_seed(0)
    deep = he_normal(nn.Sequential(*(layer for _ in range(20) for layer in (nn.ReLU(), nn.Linear(256, 256)))))
    assert 0.3 < deep(torch.randn(64, 256)).std() < 3


def test_normalisation_is_left_alone() -> None:
    norm = he_normal(nn.BatchNorm2d(4))
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()


def test_layers_without_bias() -> None:
    assert glorot_uniform(he_normal(nn.Conv2d(3, 4, 3, bias=False))).bias is None

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchmcl.networks import resnet10, resnet18, resnet34
from torchmcl.networks.resnet import BasicBlock
from torchmcl.structures.split import Split


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("network", "classes", "count"),
    [(resnet10, 10, 4_903_242), (resnet18, 11, 11_174_475), (resnet18, 10, 11_173_962), (resnet34, 10, 21_282_122)],
)
def test_parameters(network: Callable[..., Split], classes: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(network(classes)) == count


def test_resnet18_stem_accounts_for_weight_sharing() -> None:
    with torch.device("meta"):
        assert parameters(resnet18(11).stem) == 149_824


@pytest.mark.parametrize(("network", "depth"), [(resnet10, 10), (resnet18, 18), (resnet34, 34)])
def test_depth_is_its_name(network: Callable[..., Split], depth: int) -> None:
    layers = [m for m in network(width=1).modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum(1 for m in layers if getattr(m, "kernel_size", None) != (1, 1)) == depth


@pytest.mark.parametrize("network", [resnet10, resnet18, resnet34])
def test_cuts(network: Callable[..., Split]) -> None:
    x = torch.randn(2, 3, 32, 32)
    assert network(width=4).stem(x).shape == (2, 4, 32, 32)
    assert network(width=4, cut="last_stage").stem(x).shape == (2, 16, 8, 8)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("outputs", [4, 6])
def test_block_is_the_papers_equation(stride: int, outputs: int) -> None:
    block = BasicBlock(4, outputs, stride=stride)
    x = torch.randn(3, 4, 8, 8)
    weights = [m.weight for m in block.modules() if isinstance(m, nn.Conv2d)]

    def normal(z: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(z, None, None, training=True)

    y = F.relu(normal(F.conv2d(x, weights[0], stride=stride, padding=1)))
    y = normal(F.conv2d(y, weights[1], padding=1))
    shortcut = x if stride == 1 and outputs == 4 else normal(F.conv2d(x, weights[2], stride=stride))
    torch.testing.assert_close(block(x), F.relu(y + shortcut))


def test_initialised_after_he_by_fan_out() -> None:
    torch.manual_seed(0)
    network = resnet10(width=16)
    for conv in (m for m in network.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 2000):
        fan = conv.out_channels * conv.kernel_size[0] ** 2
        assert conv.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.06)

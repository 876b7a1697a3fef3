import pytest
import torch
from torch import nn

from torchmcl.networks import mobilenet_v2
from torchmcl.networks.mobilenet import InvertedResidual


@pytest.fixture(scope="module")
def full() -> nn.Module:
    with torch.device("meta"):
        return mobilenet_v2(10)


def test_parameters(full: nn.Module) -> None:
    # 3.50 M of the authors' network, its strides being free of parameters, with 10 outputs in place of 1000.
    assert sum(p.numel() for p in full.parameters()) == 3_504_872 - 990 * 1281 == 2_236_682


def test_common_variant_has_convolutions_on_shortcuts(full: nn.Module) -> None:
    # What the often quoted 2,296,922 adds: 1x1 convolutions where stride 1 changes the width, and one at expansion 1.
    shortcuts = sum(a * b + 2 * b for a, b in ((32, 16), (16, 24), (64, 96), (160, 320)))
    assert sum(p.numel() for p in full.parameters()) + shortcuts + 32 * 32 + 2 * 32 == 2_296_922


def test_ten_of_seventeen_blocks_add(full: nn.Module) -> None:
    blocks = [m for m in full.modules() if isinstance(m, InvertedResidual)]
    assert (len(blocks), sum(block.adds for block in blocks)) == (17, 10)


def test_bottleneck_is_linear() -> None:
    block = InvertedResidual(4, 6, expansion=6)
    assert isinstance(block.residual[-1], nn.BatchNorm2d)
    assert (block(torch.randn(2, 4, 8, 8)) < 0).any()
    assert block.residual[3].groups == 24


def test_addition_keeps_the_input() -> None:
    block, x = InvertedResidual(4, 4, expansion=6), torch.randn(2, 4, 8, 8)
    nn.init.zeros_(block.residual[-1].weight)
    assert torch.equal(block(x), x)


def test_nothing_to_widen_at_expansion_1() -> None:
    assert sum(isinstance(m, nn.Conv2d) for m in InvertedResidual(4, 4, expansion=1).modules()) == 2


def test_cuts() -> None:
    x = torch.randn(2, 3, 32, 32)
    network = mobilenet_v2(width=8)
    assert network.stem(x).shape == (2, 6, 32, 32)
    assert network.body[0](network.stem(x)).shape[2:] == (16, 16)
    network = mobilenet_v2(width=8, cut="last_stage")
    assert network.stem(x).shape == (2, 24, 8, 8)
    assert network.body[0](network.stem(x)).shape == (2, 40, 4, 4)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    network = mobilenet_v2(width=32)
    assert network.body[-1].weight.std().item() == pytest.approx(0.01, rel=0.05)
    depthwise = torch.cat([m.weight.flatten() for m in network.modules() if isinstance(m, nn.Conv2d) and m.groups > 1])
    assert depthwise.std().item() == pytest.approx((2 / 9) ** 0.5, rel=0.05)

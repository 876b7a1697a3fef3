import pytest
import torch
from torch import nn

from torchmcl.networks import vgg16

CONFIGURATION_D = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


@pytest.fixture(scope="module")
def full() -> nn.Module:
    with torch.device("meta"):
        return vgg16(10)


def test_configuration(full: nn.Module) -> None:
    marks = {nn.Conv2d: lambda m: m.out_channels, nn.MaxPool2d: lambda _: "M"}
    assert [marks[type(m)](m) for m in full.modules() if type(m) in marks] == CONFIGURATION_D


def test_parameters(full: nn.Module) -> None:
    # The count often quoted, less the biases that the normalisation would subtract again.
    biases = sum(width for width in CONFIGURATION_D if width != "M")
    assert sum(p.numel() for p in full.parameters()) == 14_728_266 - biases == 14_724_042


def test_cuts() -> None:
    x = torch.randn(2, 3, 32, 32)
    assert vgg16(width=4).stem(x).shape == (2, 4, 32, 32)
    network = vgg16(width=4, cut="last_stage")
    assert network.stem(x).shape == (2, 32, 2, 2)
    assert sum(isinstance(m, nn.Conv2d) for m in network.body.modules()) == 3


def test_initialised_after_glorot() -> None:
    torch.manual_seed(0)
    conv = vgg16(width=16).stem[3]
    assert conv.weight.abs().max().item() == pytest.approx((6 / (2 * 16 * 9)) ** 0.5, rel=0.02)

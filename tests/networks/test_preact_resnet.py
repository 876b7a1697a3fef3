import torch
from torch import nn

from torchmcl.networks import preact_resnet10, resnet10
from torchmcl.networks.preact_resnet import PreActivationBlock


def test_parameters() -> None:
    # The convolutions of ResNet-10; each block's second normalisation has moved to the entry of what follows, which
    # counts the same, and the three that were on shortcuts are gone.
    with torch.device("meta"):
        plain, ours = (sum(p.numel() for p in n(10).parameters()) for n in (resnet10, preact_resnet10))
    shortcuts = 2 * (128 + 256 + 512)
    assert ours == plain - shortcuts == 4_901_450


def test_is_resnet10_where_nothing_is_normalised() -> None:
    # In evaluation at the start the normalisation is the identity, up to its epsilon. Activating before a block or
    # after the one before is then the same, if the first and the last block are as the paper's appendix says.
    outputs = []
    for network in (resnet10, preact_resnet10):
        torch.manual_seed(0)
        outputs.append(network(width=8).eval()(torch.ones(2, 3, 32, 32)))
    torch.testing.assert_close(*outputs, rtol=1e-3, atol=1e-3)


def test_shortcut_is_the_identity() -> None:
    block = PreActivationBlock(4, 4)
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), x)


def test_changed_shape_projects_the_activated_input() -> None:
    block = PreActivationBlock(4, 6, stride=2)
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(block(x), block.shortcut(torch.relu(block.activation[0](x))))


def test_cuts() -> None:
    x = torch.randn(2, 3, 32, 32)
    low = preact_resnet10(width=4).stem(x)
    assert low.shape == (2, 4, 32, 32)
    assert (low < 0).any()
    assert preact_resnet10(width=4, cut="last_stage").stem(x).shape == (2, 16, 8, 8)

import torch
from torch import nn

from torchmcl.networks import googlenet
from torchmcl.networks.googlenet import Inception, Widths


def test_parameters() -> None:
    with torch.device("meta"):
        network = googlenet(10)
    # The count of the common CIFAR form, less the biases that the normalisation would subtract again.
    biases = sum(m.out_channels for m in network.modules() if isinstance(m, nn.Conv2d))
    assert sum(p.numel() for p in network.parameters()) == 6_166_250 - biases == 6_158_346


def test_output_sizes_of_the_papers_table() -> None:
    seen: list[tuple[int, int]] = []
    with torch.device("meta"):
        network = googlenet(10)
        for module in network.modules():
            if isinstance(module, Inception):
                module.register_forward_hook(lambda _, __, output: seen.append((output.shape[1], output.shape[2])))
        network(torch.randn(2, 3, 32, 32))
    channels = [256, 480, 512, 512, 512, 528, 832, 832, 1024]
    assert seen == list(zip(channels, [32] * 2 + [16] * 5 + [8] * 2, strict=True))


def test_branches_lie_side_by_side() -> None:
    module, x = Inception(4, Widths(1, 2, 3, 4, 5, 6)).eval(), torch.randn(2, 4, 8, 8)
    one, three, five, pool = module(x).split([1, 3, 5, 6], dim=1)
    torch.testing.assert_close(one, module.one(x))
    torch.testing.assert_close(three, module.three(x))
    torch.testing.assert_close(five, module.five(x))
    torch.testing.assert_close(pool, module.pool(x))


def test_branches_reach_1_3_5_3() -> None:
    module = Inception(1, Widths(1, 1, 1, 1, 1, 1)).eval()
    for conv in (m for m in module.modules() if isinstance(m, nn.Conv2d)):
        nn.init.ones_(conv.weight)
    dot = torch.zeros(1, 1, 11, 11)
    dot[0, 0, 5, 5] = 1
    assert [int(row.sum()) for row in (module(dot)[0].amax(1) > 0)] == [1, 3, 5, 3]


def test_cuts() -> None:
    x = torch.randn(2, 3, 32, 32)
    network = googlenet(width=24)
    assert network.stem(x).shape == (2, 24, 32, 32)
    assert isinstance(network.body[0], Inception)
    network = googlenet(width=24, cut="last_stage")
    assert network.stem(x).shape == (2, 104, 8, 8)
    assert [type(m).__name__ for m in network.body[:3]] == ["Inception", "Inception", "AdaptiveAvgPool2d"]

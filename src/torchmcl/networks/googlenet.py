from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchmcl.networks.initialization import glorot_uniform
from torchmcl.networks.layers import Cut, check_sizes, convolution, head, scale_channels, split
from torchmcl.structures.split import Split


class Widths(NamedTuple):
    """The numbers of channels in an inception module, in the order of table 1 of Szegedy et al. 2015."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int

    @property
    def outputs(self) -> int:
        """The total number of channels in the four branches."""
        return self.one + self.three + self.five + self.pool


STAGES = (
    (Widths(64, 96, 128, 16, 32, 32), Widths(128, 128, 192, 32, 96, 64)),
    (
        Widths(192, 96, 208, 16, 48, 64),
        Widths(160, 112, 224, 24, 64, 64),
        Widths(128, 128, 256, 24, 64, 64),
        Widths(112, 144, 288, 32, 64, 64),
        Widths(256, 160, 320, 32, 128, 128),
    ),
    (Widths(256, 160, 320, 32, 128, 128), Widths(384, 192, 384, 48, 128, 128)),
)


class Inception(nn.Module):
    """Four parallel branches with different receptive fields (Szegedy et al. 2015, figure 2b).

    Two 3x3 convolutions replace the 5x5 convolution. They have the same receptive field and need fewer operations
    (Szegedy et al. 2016).
    """

    def __init__(self, inputs: int, widths: Widths) -> None:
        super().__init__()
        one, three_reduce, three, five_reduce, five, pool = widths
        self.one = nn.Sequential(*convolution(inputs, one, 1))
        self.three = nn.Sequential(*convolution(inputs, three_reduce, 1), *convolution(three_reduce, three))
        two_threes = (*convolution(five_reduce, five), *convolution(five, five))
        self.five = nn.Sequential(*convolution(inputs, five_reduce, 1), *two_threes)
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), *convolution(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, widths.outputs, H, W)."""
        return torch.cat((self.one(x), self.three(x), self.five(x), self.pool(x)), dim=1)


def googlenet(classes: int = 10, *, width: int = 192, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build GoogLeNet for small images (Szegedy et al. 2015, table 1, inception modules 3a to 5b).

    The CIFAR variant has one 3x3 convolution in place of the original first layers, batch normalisation after every
    convolution, and neither dropout nor auxiliary classifiers [I]. The paper does not state the initialisation; we
    use that of Glorot & Bengio [I].

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        cut: where to split: "exchange" after the first convolution [I], "last_stage" before module 5a

    Returns:
        A network (B, channels, H, W) -> (B, classes).

    >>> googlenet(classes=10, width=12)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    check_sizes(classes=classes, width=width, channels=channels)
    third, fourth, fifth = (
        [Widths(*(scale_channels(published, width, 192) for published in module)) for module in stage]
        for stage in STAGES
    )
    # The cut is here because fusion costs less with 192 channels than with the 480 channels before the first stride.
    low = convolution(channels, width)
    middle = [
        *_stage(width, third),
        nn.MaxPool2d(3, stride=2, padding=1),
        *_stage(third[-1].outputs, fourth),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    high = [*_stage(fourth[-1].outputs, fifth), *head(fifth[-1].outputs, classes)]
    return glorot_uniform(split(low, middle, high, cut=cut, features=(width, fourth[-1].outputs)))


def _stage(inputs: int, modules: list[Widths]) -> list[nn.Module]:
    widths = [inputs, *(module.outputs for module in modules)]
    return [Inception(before, module) for before, module in zip(widths[:-1], modules, strict=True)]

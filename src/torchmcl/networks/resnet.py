from torch import Tensor, nn

from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import Cut, check_sizes, convolution, head, split
from torchmcl.structures.split import Split


class BasicBlock(nn.Module):
    """Two 3x3 convolutions added to a shortcut, then an activation (He et al. 2016, figure 2, eq. 1 and 2)."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__()
        # The last activation follows the sum.
        self.residual = nn.Sequential(*convolution(inputs, outputs, stride=stride), *convolution(outputs, outputs)[:-1])
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(*convolution(inputs, outputs, 1, stride=stride)[:-1] if changes else ())
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        return self.activation(self.residual(x) + self.shortcut(x))


def resnet10(classes: int = 10, *, width: int = 64, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build a ResNet-10 for small images, with one block per stage [I] and the arguments of `resnet18`.

    >>> sum(p.numel() for p in resnet10().parameters())
    4903242
    """
    return _resnet((1, 1, 1, 1), classes, width=width, channels=channels, cut=cut)


def resnet18(classes: int = 10, *, width: int = 64, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build a ResNet-18 for small images (He et al. 2016, "Deep Residual Learning for Image Recognition", table 1).

    The CIFAR variant has a 3x3 convolution with stride 1 in place of a 7x7 convolution with stride 2 and pooling [I].
    This variant matches the parameter counts in Kim et al. 2022. The initialisation is that of He et al. 2015.

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        cut: where to split: "exchange" before stage 2, the first with stride 2; "last_stage" before stage 4

    Returns:
        A network (B, channels, H, W) -> (B, classes).

    >>> network = resnet18(classes=11)
    >>> sum(p.numel() for p in network.parameters()), sum(p.numel() for p in network.stem.parameters())
    (11174475, 149824)
    """
    return _resnet((2, 2, 2, 2), classes, width=width, channels=channels, cut=cut)


def resnet34(classes: int = 10, *, width: int = 64, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build a ResNet-34 for small images, with 3, 4, 6 and 3 blocks per stage and the arguments of `resnet18`.

    >>> sum(p.numel() for p in resnet34().parameters())
    21282122
    """
    return _resnet((3, 4, 6, 3), classes, width=width, channels=channels, cut=cut)


def _resnet(blocks: tuple[int, int, int, int], classes: int, *, width: int, channels: int, cut: Cut) -> Split:
    check_sizes(classes=classes, width=width, channels=channels)
    low = [*convolution(channels, width), *_stage(width, width, blocks[0], stride=1)]
    middle = [*_stage(width, 2 * width, blocks[1], stride=2), *_stage(2 * width, 4 * width, blocks[2], stride=2)]
    high = [*_stage(4 * width, 8 * width, blocks[3], stride=2), *head(8 * width, classes)]
    return he_normal(split(low, middle, high, cut=cut, features=(width, 4 * width)), fan="out")


def _stage(inputs: int, outputs: int, count: int, *, stride: int) -> list[nn.Module]:
    return [BasicBlock(inputs, outputs, stride=stride), *(BasicBlock(outputs, outputs) for _ in range(count - 1))]

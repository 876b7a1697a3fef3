from torch import nn

from torchmcl.networks.initialization import glorot_uniform
from torchmcl.networks.layers import Cut, check_sizes, convolution, head, split
from torchmcl.structures.split import Split


def vgg16(classes: int = 10, *, width: int = 64, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build VGG-16 for small images (Simonyan & Zisserman 2015, table 1, configuration D).

    The initialisation is Glorot & Bengio's, which the paper considers sufficient (section 3.1). The CIFAR variant has
    batch normalisation after every convolution, so convolutions have no biases. Global average pooling and one linear
    layer replace the three linear layers on 7x7 maps [I].

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        cut: where to split: "exchange" before the first pooling, "last_stage" before the last three convolutions

    Returns:
        A network (B, channels, H, W) -> (B, classes), for H >= 32 and W >= 32.

    >>> sum(p.numel() for p in vgg16().parameters())
    14724042
    """
    check_sizes(classes=classes, width=width, channels=channels)
    low = _block(channels, width, 2)
    middle: list[nn.Module] = [nn.MaxPool2d(2)]
    for inputs, outputs, count in ((width, 2 * width, 2), (2 * width, 4 * width, 3), (4 * width, 8 * width, 3)):
        middle += [*_block(inputs, outputs, count), nn.MaxPool2d(2)]
    high = [*_block(8 * width, 8 * width, 3), nn.MaxPool2d(2), *head(8 * width, classes)]
    return glorot_uniform(split(low, middle, high, cut=cut, features=(width, 8 * width)))


def _block(inputs: int, outputs: int, count: int) -> list[nn.Module]:
    widths = [inputs] + [outputs] * (count - 1)
    return [layer for width in widths for layer in convolution(width, outputs)]

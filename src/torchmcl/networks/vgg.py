from torch import nn

from torchmcl.networks.initialization import glorot
from torchmcl.networks.layers import Cut, convolution, head, positive, split
from torchmcl.structures.split import Split


def vgg16(classes: int = 10, *, width: int = 64, channels: int = 3, cut: Cut = "exchange") -> Split:
    """VGG-16 for small images: (B, channels, H, W) -> (B, classes), H and W of at least 32.

    Simonyan & Zisserman 2015, table 1, configuration D, with Glorot & Bengio's initialisation, which the paper notes
    to work (section 3.1). The CIFAR form: batch normalisation after every convolution, hence no biases there, and
    one linear layer on the global average in place of three on 7x7 maps [I].

    Cuts: "exchange" before the first pooling, "last_stage" before the last three convolutions.

    >>> import torch
    >>> vgg16(classes=10, width=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    positive(classes=classes, width=width, channels=channels)
    low = _block(channels, width, 2)
    middle = [
        nn.MaxPool2d(2),
        *_block(width, 2 * width, 2),
        nn.MaxPool2d(2),
        *_block(2 * width, 4 * width, 3),
        nn.MaxPool2d(2),
        *_block(4 * width, 8 * width, 3),
        nn.MaxPool2d(2),
    ]
    high = [*_block(8 * width, 8 * width, 3), nn.MaxPool2d(2), *head(8 * width, classes)]
    return glorot(split(low, middle, high, cut=cut, features=(width, 8 * width)))


def _block(inputs: int, outputs: int, count: int) -> list[nn.Module]:
    widths = [inputs] + [outputs] * (count - 1)
    return [layer for width in widths for layer in convolution(width, outputs)]

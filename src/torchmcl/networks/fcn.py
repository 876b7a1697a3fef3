from torch import nn

from torchmcl.networks.initialization import he
from torchmcl.networks.layers import Cut, convolution, positive, split
from torchmcl.structures.split import Split


def fcn(classes: int = 10, *, width: int = 128, channels: int = 3, cut: Cut = "exchange") -> Split:
    """A fully convolutional network for segmentation: (B, channels, H, W) -> (B, classes, H, W).

    Kim et al. 2022, appendix E.1: two blocks of a 4x4 convolution of stride 2, batch normalisation and ReLU with 128
    and 256 filters, and a decoder of "transformed structures of the encoding part with a bi-linear upsampling layer".
    Its mirrored transposed convolutions, padding 1 and He initialisation are inference [I]. `Split` does the bilinear
    upsampling, which has work to do where H or W is no multiple of 4.

    Cuts: "exchange" after the first encoding block, "last_stage" before the decoder.

    >>> import torch
    >>> fcn(classes=3, width=4)(torch.zeros(2, 3, 75, 125)).shape
    torch.Size([2, 3, 75, 125])
    """
    positive(classes=classes, width=width, channels=channels)
    low = convolution(channels, width, 4, stride=2)
    middle = convolution(width, 2 * width, 4, stride=2)
    high = [
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, classes, 4, stride=2, padding=1),
    ]
    return he(split(low, middle, high, cut=cut, features=(width, 2 * width)))

from functools import partial

from torch import nn

from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import Cut, check_sizes, convolution, split
from torchmcl.structures.split import Split


def fcn(classes: int = 10, *, width: int = 128, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Build a fully convolutional network for segmentation (Kim et al. 2022, appendix E.1).

    The encoder has two blocks, with 128 and 256 filters. Each block is a 4x4 convolution with stride 2, batch
    normalisation and ReLU. The paper describes the decoder as "transformed structures of the encoding part with a
    bi-linear upsampling layer". The mirrored transposed convolutions, padding 1 and He initialisation are inferred [I].
    `Split` resizes the outputs bilinearly if H or W is not a multiple of 4.

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        cut: where to split: "exchange" after the first encoder block, "last_stage" before the decoder

    Returns:
        A network (B, channels, H, W) -> (B, classes, H, W).

    >>> sum(p.numel() for p in fcn(classes=3).parameters())
    1061891
    """
    check_sizes(classes=classes, width=width, channels=channels)
    low = convolution(channels, width, 4, stride=2)
    middle = convolution(width, 2 * width, 4, stride=2)
    upsample = partial(nn.ConvTranspose2d, kernel_size=4, stride=2, padding=1)
    high = [upsample(2 * width, width, bias=False), nn.BatchNorm2d(width), nn.ReLU(), upsample(width, classes)]
    return he_normal(split(low, middle, high, cut=cut, features=(width, 2 * width)))

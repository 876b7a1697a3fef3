from typing import Literal

from torch import nn

from torchmcl.errors import known_name
from torchmcl.networks import layers
from torchmcl.networks.initialization import he_normal
from torchmcl.networks.layers import Cut, check_sizes, convolution, split
from torchmcl.structures.split import Split


def simple_cnn(
    classes: int = 10,
    *,
    width: int = 32,
    channels: int = 3,
    head: Literal["pooled", "linear"] = "pooled",
    cut: Cut = "exchange",
) -> Split:
    """Build a network of three convolutions and a linear layer (Kim et al. 2022, section 3.1).

    The paper states "three convolutional layers with 32, 64 and 128 filters followed by a fully-connected layer". Batch
    normalisation, 3x3 kernels, 2x2 max pooling after each convolution, global average pooling before the linear layer
    and He initialisation are inferred [I]. With `head="linear"`, the linear layer reads the 4x4 map of a 32x32 image.
    It keeps PyTorch's default initialisation, because training with He's diverges at the paper's learning rate of 0.1
    (LOG.md, 2026-11-15).

    Args:
        classes: the number of outputs
        width: the number of channels after the first convolution; other layers scale with it
        channels: the number of input channels
        head: what precedes the linear layer: "pooled" for global average pooling, "linear" for the map of 4x4 positions
        cut: where to split: "exchange" before the first pooling, "last_stage" before the third convolution

    Returns:
        A network (B, channels, H, W) -> (B, classes), for H >= 8 and W >= 8.

    >>> sum(p.numel() for p in simple_cnn().parameters())
    94762
    >>> sum(p.numel() for p in simple_cnn(head="linear").parameters())
    113962
    """
    known_name("head", head, ("pooled", "linear"))
    check_sizes(classes=classes, width=width, channels=channels)
    low = convolution(channels, width)
    middle = [nn.MaxPool2d(2), *convolution(width, 2 * width), nn.MaxPool2d(2)]
    *last, linear = layers.head(4 * width, classes, side=4 if head == "linear" else 1)
    high = [*convolution(2 * width, 4 * width), nn.MaxPool2d(2), *last, linear]
    network = he_normal(split(low, middle, high, cut=cut, features=(width, 2 * width)))
    if head == "linear":
        linear.reset_parameters()
    return network

from torch import nn

from torchmcl.networks.initialization import he
from torchmcl.networks.layers import Cut, convolution, head, positive, split
from torchmcl.structures.split import Split


def simple_cnn(classes: int = 10, *, width: int = 32, channels: int = 3, cut: Cut = "exchange") -> Split:
    """Three convolutions and a linear layer: (B, channels, H, W) -> (B, classes), H and W of at least 8.

    Kim et al. 2022, section 3.1: "three convolutional layers with 32, 64 and 128 filters followed by a
    fully-connected layer". Batch normalisation, 3x3 kernels, a 2x2 max pooling after each convolution, global average
    pooling before the linear layer and He initialisation are inference [I]. Without the average, a linear layer on the
    4x4 map diverges at the paper's learning rate of 0.1 (LOG.md, 2026-11-15).

    Cuts: "exchange" before the first pooling, "last_stage" before the third convolution.

    >>> import torch
    >>> simple_cnn(classes=10, width=4, channels=1)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    positive(classes=classes, width=width, channels=channels)
    low = convolution(channels, width)
    middle = [nn.MaxPool2d(2), *convolution(width, 2 * width), nn.MaxPool2d(2)]
    high = [*convolution(2 * width, 4 * width), nn.MaxPool2d(2), *head(4 * width, classes)]
    return he(split(low, middle, high, cut=cut, features=(width, 2 * width)))

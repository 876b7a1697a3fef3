from collections.abc import Sequence
from numbers import Integral
from reprlib import repr as shown
from typing import Literal, get_args

from torch import nn

from torchmcl.errors import UsageError
from torchmcl.structures.split import Split

Cut = Literal["exchange", "last_stage"]


def convolution(
    inputs: int, outputs: int, size: int = 3, *, stride: int = 1, groups: int = 1, activation: type[nn.Module] = nn.ReLU
) -> list[nn.Module]:
    """Convolution, batch normalisation, activation: (B, inputs, H, W) -> (B, outputs, H / stride, W / stride).

    >>> [type(layer).__name__ for layer in convolution(3, 8)]
    ['Conv2d', 'BatchNorm2d', 'ReLU']
    """
    return [
        # No bias: the normalisation subtracts it again.
        nn.Conv2d(inputs, outputs, size, stride=stride, padding=(size - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        activation(),
    ]


def head(inputs: int, classes: int) -> tuple[nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]:
    """Global average pooling and a linear layer: (B, inputs, H, W) -> (B, classes), whatever the H and W.

    >>> import torch
    >>> nn.Sequential(*head(8, 10))(torch.zeros(2, 8, 5, 7)).shape
    torch.Size([2, 10])
    """
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)


def scaled(published: int, width: int, first: int) -> int:
    """A published number of channels, in proportion to `width` where the published first layer has `first`.

    >>> scaled(512, 64, 64), scaled(512, 16, 64), scaled(16, 1, 192)
    (512, 128, 1)
    """
    return max(1, round(published * width / first))


def positive(**sizes: int) -> None:
    """Refuse a size that is not a whole number from 1 to a million, of layers to a thousand.

    >>> positive(classes=10, width=0)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected width to be a whole number of at least 1, got width=0.
    """
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise UsageError(f"Expected {name} to be a whole number of at least 1, got {name}={shown(size)}.")
        if size > (most := 1000 if name == "depth" else 10**6):
            raise UsageError(f"Expected {name} of at most {most:,}, got {size}.")


def split(
    low: Sequence[nn.Module],
    middle: Sequence[nn.Module],
    high: Sequence[nn.Module],
    *,
    cut: Cut,
    features: tuple[int, int],
) -> Split:
    """One chain of layers, cut after `low` ("exchange") or after `middle` ("last_stage"); `features` at either place.

    >>> low, middle, high = [nn.Linear(4, 8)], [nn.Linear(8, 6)], [nn.Linear(6, 2)]
    >>> network = split(low, middle, high, cut="last_stage", features=(8, 6))
    >>> len(network.stem), len(network.body), network.features
    (2, 1, 6)
    """
    if cut not in get_args(Cut):
        raise UsageError(f"Expected cut to be one of {', '.join(get_args(Cut))}, got {cut!r}.")
    before, width = (len(low), features[0]) if cut == "exchange" else (len(low) + len(middle), features[1])
    return Split.at([*low, *middle, *high], before, features=width)

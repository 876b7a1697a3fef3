from collections.abc import Sequence
from numbers import Integral
from reprlib import repr as shown
from typing import Literal, get_args

from torch import nn

from torchmcl.errors import UsageError
from torchmcl.structures.split import Split

Cut = Literal["exchange", "last_stage"]
Layers = Sequence[nn.Module]


def convolution(
    inputs: int, outputs: int, size: int = 3, *, stride: int = 1, groups: int = 1, activation: type[nn.Module] = nn.ReLU
) -> list[nn.Module]:
    """Build a convolution, batch norm and activation: (B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
    # A bias would have no effect, because the normalisation subtracts it.
    layer = nn.Conv2d(inputs, outputs, size, stride=stride, padding=(size - 1) // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(outputs), activation()]


def head(inputs: int, classes: int, *, side: int = 1) -> tuple[nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]:
    """Build average pooling to side x side positions and a linear layer: (B, inputs, H, W) -> (B, classes)."""
    return nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(side * side * inputs, classes)


def scale_channels(published: int, width: int, first: int) -> int:
    """Scale a published number of channels by width / first; `first` is the published width of the first layer."""
    return max(1, round(published * width / first))


def check_sizes(**sizes: int) -> None:
    """Raise UsageError if a size is not an integer from 1 to 1,000,000, or from 1 to 1,000 for `depth`."""
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise UsageError(f"Expected {name} to be an integer >= 1, got {name}={shown(size)}.")
        if size > (limit := 1000 if name == "depth" else 10**6):
            raise UsageError(f"Expected {name} <= {limit:,}, got {size}.")


def split(low: Layers, middle: Layers, high: Layers, *, cut: Cut, features: tuple[int, int]) -> Split:
    """Split layers after `low` ("exchange") or `middle` ("last_stage"); `features` are the widths at the two cuts."""
    if cut not in get_args(Cut):
        raise UsageError(f"Expected cut to be one of {', '.join(get_args(Cut))}, got {cut!r}.")
    before, width = (len(low), features[0]) if cut == "exchange" else (len(low) + len(middle), features[1])
    return Split.at([*low, *middle, *high], before, features=width)

"""Preprocessing: functions that convert a batch (B, …) of raw examples to network inputs."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl._utils.registry import Registry


def global_contrast(x: Tensor) -> Tensor:
    """Normalize each image to mean 0 and root mean square 1 over pixels and channels, (B, …) -> (B, …) float32.

    Computes (x - mean) / rms(x - mean), without the division if the root mean square is below 1e-8. This is global
    contrast normalization, the only preprocessing in the paper. The result matches pylearn2's implementation with the
    scale sqrt(D), where D is the number of values per image.

    >>> global_contrast(torch.tensor([[[[1, 3]]], [[[7, 7]]]], dtype=torch.uint8)).flatten(1)
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    x = x.float()
    axes = tuple(range(1, x.dim()))
    x = x - x.mean(axes, keepdim=True)
    # The mean is subtracted twice, as the division would amplify the mean's rounding error for a large uniform image.
    x = x - x.mean(axes, keepdim=True)
    rms = x.square().mean(axes, keepdim=True).sqrt()
    return x / torch.where(rms < 1e-8, 1.0, rms)


def scale(x: Tensor) -> Tensor:
    """Scale uint8 values from the range 0 to 255 to the range -1 to 1, (B, …) -> (B, …) float32.

    >>> scale(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-1.,  1.])
    """
    return x.float() / 255 * 2 - 1


def none(x: Tensor) -> Tensor:
    """Convert examples to float32 without changing the values, (B, …) -> (B, …)."""
    return x.float()


def channels_last(x: Tensor) -> Tensor:
    """Convert images (B, C, H, W) to the memory format channels_last, in which convolutions are fastest."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


_PREPARATIONS: Registry[Callable[[Tensor], Tensor]] = Registry("preprocessing")
_PREPARATIONS |= {"gcn": global_contrast, "scale": scale, "none": none}
NAMES = _PREPARATIONS.names()  # the built-in functions


def names() -> tuple[str, ...]:
    """Return the names of all preprocessing functions, including registered ones."""
    return _PREPARATIONS.names()


def register(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A decorator that registers a preprocessing function, (B, …) -> floating-point (B, …), under its own name."""
    return _PREPARATIONS.register(function)


def default(dtype: torch.dtype) -> str:
    """Return "gcn" for uint8 examples, and "none" for float examples, which are assumed to be preprocessed already."""
    return "gcn" if dtype == torch.uint8 else "none"


def get(name: str) -> Callable[[Tensor], Tensor]:
    """Return the preprocessing function (B, …) -> (B, …) with this name; raise UsageError for an unknown name.

    >>> get("none")(torch.tensor([7], dtype=torch.uint8))
    tensor([7.])
    """
    return _PREPARATIONS.find(name)

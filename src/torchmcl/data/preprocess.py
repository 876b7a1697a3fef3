from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl._utils.registry import Registry


def global_contrast(x: Tensor) -> Tensor:
    """Each image with mean 0 and root mean square 1 over all pixels and channels, (B, …) -> (B, …) float32.

    (x - mean) / rms(x - mean), divided by 1 where the root mean square is below 1e-8: global contrast normalisation,
    the paper's only preprocessing (pylearn2's with scale sqrt(D)).

    >>> global_contrast(torch.tensor([[[[1, 3]]], [[[7, 7]]]], dtype=torch.uint8)).flatten(1)
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    x = x.float()
    axes = tuple(range(1, x.dim()))
    x = x - x.mean(axes, keepdim=True)
    # Again: a float32 mean of a large even image is off by a rounding, which the division would blow up to 1.
    x = x - x.mean(axes, keepdim=True)
    rms = x.square().mean(axes, keepdim=True).sqrt()
    return x / torch.where(rms < 1e-8, 1.0, rms)


def scale(x: Tensor) -> Tensor:
    """Bytes 0 to 255 as -1 to 1, (B, …) -> (B, …) float32.

    >>> scale(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([-1.,  1.])
    """
    return x.float() / 255 * 2 - 1


def none(x: Tensor) -> Tensor:
    """The values as they are, in float32."""
    return x.float()


def channels_last(x: Tensor) -> Tensor:
    """Images (B, C, H, W) with their channels last in memory, as convolutions read them fastest; others unchanged."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


_PREPARATIONS: Registry[Callable[[Tensor], Tensor]] = Registry("preprocessing")
_PREPARATIONS |= {"gcn": global_contrast, "scale": scale, "none": none}
NAMES = _PREPARATIONS.names()  # of this package's own


def names() -> tuple[str, ...]:
    """The names of all preprocessings, registered ones included."""
    return _PREPARATIONS.names()


def register(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Register a preprocessing of your own, (B, …) as read -> (B, …) floating point, under the function's name."""
    return _PREPARATIONS.register(function)


def apply(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name, (B, …) -> (B, …) float32.

    >>> apply("none")(torch.tensor([7], dtype=torch.uint8))
    tensor([7.])
    """
    return _PREPARATIONS.find(name)

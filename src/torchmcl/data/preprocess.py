"""Preprocessing: functions that convert a batch (B, …) of raw examples to network inputs.

A preprocessing is given by name, such as "gcn". Steps with numbers, "resize:HEIGHTxWIDTH" and "normalize:MEAN/STD",
can be joined with other ones by "+". Two steps depend on the training set and are not such functions: `fit` replaces
"standardize" with "normalize:MEAN/STD" (`fitted`), and "zca", which can only be the last step, is computed and stored
by the ensemble (`ensemble.whitening`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from math import isfinite
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl._utils.registry import Registry
from torchmcl.errors import UsageError

MAX_SIDE = 10_000  # of a resized image
STANDARDIZE = "standardize"


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


def rgb(x: Tensor) -> Tensor:
    """Repeat the channel of gray images, (B, 1, H, W) -> (B, 3, H, W) float32; color images are not changed.

    >>> rgb(torch.zeros(2, 1, 4, 4, dtype=torch.uint8)).shape
    torch.Size([2, 3, 4, 4])
    """
    return x.float().expand(-1, 3, -1, -1)


def normalize(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Compute (x - mean) / std with one number, or one number per channel, (B, C, …) -> (B, C, …) float32.

    >>> normalize(torch.tensor([[0, 255]], dtype=torch.uint8), [127], [128])
    tensor([[-0.9922,  1.0000]])
    """
    shape = (1, -1, *[1] * (x.ndim - 2))
    center, spread = (torch.tensor(values, device=x.device).view(shape) for values in (mean, std))
    return (x.float() - center) / spread


def denormalize(name: str, x: Tensor) -> Tensor:
    """Undo the preprocessing "normalize:MEAN/STD"; with any other preprocessing, x is returned unchanged.

    >>> denormalize("normalize:2,5/1,10", torch.tensor([[0.0, 1.0]]))
    tensor([[ 2., 15.]])
    """
    if not name.startswith("normalize:") or "+" in name:
        return x
    shape = (1, -1, *[1] * (x.ndim - 2))
    numbers = cast(partial[Tensor], _step(name)).keywords
    mean, std = (torch.tensor(numbers[part]).view(shape) for part in ("mean", "std"))
    return x * std + mean


def resize(x: Tensor, height: int, width: int) -> Tensor:
    """Resize images to whole levels 0 to 255, bicubic with antialiasing, (B, C, H, W) -> (B, C, height, width) float32.

    Pixels differ from those of Pillow by at most one level. Like Pillow, this function resizes rows first, and rounds
    in between. Each direction is the product with a matrix, which every device and runtime computes.

    >>> resize(torch.full((1, 3, 2, 2), 200, dtype=torch.uint8), 4, 4).unique()
    tensor([200.])
    """
    x = x.float()
    if x.shape[3] != width:
        x = _levels(x @ torch.from_numpy(_resize_matrix(x.shape[3], width)).to(x.device).T)
    if x.shape[2] != height:
        x = _levels(torch.from_numpy(_resize_matrix(x.shape[2], height)).to(x.device) @ x)
    return x


def _levels(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)  # like Pillow; `round` rounds a half to even numbers


@lru_cache(maxsize=64)
def _resize_matrix(before: int, after: int) -> NDArray[np.float32]:
    """Return the matrix (after, before) of bicubic interpolation (Keys 1981, a = -0.5), widened to smooth if smaller.

    It is an array because a tensor that is created while a network is traced must not be cached.
    """
    scale = before / after
    centers = (np.arange(after) + 0.5) * scale
    x = np.abs(np.arange(before) + 0.5 - centers[:, None]) / max(scale, 1)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def none(x: Tensor) -> Tensor:
    """Convert examples to float32 without changing the values, (B, …) -> (B, …)."""
    return x.float()


def channels_last(x: Tensor) -> Tensor:
    """Convert images (B, C, H, W) to the memory format channels_last, in which convolutions are fastest."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


_PREPARATIONS: Registry[Callable[[Tensor], Tensor]] = Registry("preprocessing", reserved=(STANDARDIZE,))
_PREPARATIONS |= {"gcn": global_contrast, "scale": scale, "none": none, "rgb": rgb}
NAMES = _PREPARATIONS.names()  # the built-in functions


def names() -> tuple[str, ...]:
    """Return the names of all preprocessing functions, including registered ones."""
    return _PREPARATIONS.names()


def register(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A decorator that registers a preprocessing function, (B, …) -> floating-point (B, …), under its own name."""
    return _PREPARATIONS.register(function)


def split_whitening(name: str) -> tuple[str, bool]:
    """Return the steps without a last step "zca", and whether there is such a step.

    Raises:
        UsageError: if a step is unknown

    >>> split_whitening("gcn+zca"), split_whitening("gcn")
    (('gcn', True), ('gcn', False))
    """
    steps = name.removesuffix("+zca") if isinstance(name, str) else name
    if steps != STANDARDIZE:
        get(steps)  # raises UsageError if the name is unknown
    return steps, steps != name


def fitted(name: str, batches: Iterable[Tensor]) -> str:
    """Replace "standardize" with "normalize:MEAN/STD", so that each feature or channel has mean 0 and deviation 1.

    Args:
        name: a preprocessing
        batches: the training examples, (B, D) or (B, C, H, W)

    Returns:
        The preprocessing with numbers; other ones are returned unchanged. A constant feature is only centred.

    >>> fitted("standardize", [torch.tensor([[1.0, 5.0], [3.0, 5.0]])])
    'normalize:2,5/1,1'
    """
    if name != STANDARDIZE:
        return name
    count, mean, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for batch in batches:
        x = batch.double().movedim(1, -1).flatten(0, -2)
        # Chan et al. 1979: merging the sums of two parts is accurate even if the mean is much larger than the spread.
        part, total = x.mean(0), count + len(x)
        squares = squares + (x - part).square().sum(0) + (part - mean).square() * (count * len(x) / total)
        mean, count = mean + (part - mean) * (len(x) / total), total
    deviation = (squares / count).sqrt()
    # A deviation below the resolution of float32 is rounding, not information.
    deviation = torch.where(deviation > 1e-6 * mean.abs().clamp_min(1e-30), deviation, 1.0)
    numbers = (",".join(f"{value:.9g}" for value in values.tolist()) for values in (mean, deviation))
    return f"normalize:{'/'.join(numbers)}"


def default(dtype: torch.dtype) -> str:
    """Return "gcn" for uint8 examples, and "none" for float examples, which are assumed to be preprocessed already."""
    return "gcn" if dtype == torch.uint8 else "none"


def get(name: str) -> Callable[[Tensor], Tensor]:
    """Return the preprocessing function (B, …) -> (B, …) with this name; raise UsageError for an unknown name.

    >>> get("none")(torch.tensor([7], dtype=torch.uint8))
    tensor([7.])
    >>> get("rgb+resize:96x96+normalize:127/128")(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 3, 96, 96])
    """
    if not isinstance(name, str) or (name != STANDARDIZE and not {":", "+"} & {*name}):
        return _PREPARATIONS.find(name)
    steps = [_step(step) for step in name.split("+")]

    def function(x: Tensor) -> Tensor:
        for step in steps:
            x = step(x)
        return x

    return function


def _step(text: str) -> Callable[[Tensor], Tensor]:
    name, _, numbers = text.partition(":")
    if name == "zca":
        raise UsageError("The step zca must be the last one of a data set's preprocessing, which fit applies.")
    if name == STANDARDIZE:
        raise UsageError("The step standardize depends on the training set; fit applies it. It has no other steps.")
    if name not in ("resize", "normalize"):
        return _PREPARATIONS.find(text)
    try:
        if name == "resize":
            height, width = (int(side) for side in numbers.split("x"))
            if 1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE:
                return partial(resize, height=height, width=width)
        else:
            mean, std = ([float(value) for value in part.split(",")] for part in numbers.split("/"))
            if all(map(isfinite, (*mean, *std))) and min(std) > 0:
                return partial(normalize, mean=mean, std=std)
    except ValueError:
        pass  # the numbers are missing or invalid
    raise UsageError(f"Expected resize:HEIGHTxWIDTH or normalize:MEAN/STD, got {text!r}.")

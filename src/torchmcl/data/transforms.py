"""Augmentation: transforms of training batches, drawn from seed, epoch and batch only, so that resuming is exact.

A transform is any callable (x (B, …), target (B, …), draw) -> (x, target), given examples as they were read, before
preprocessing. `draw` has random numbers for each of the B examples: they are drawn for the whole step and each process
takes its rows, so that a training does not depend on how many processes share it. The number of examples must stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.errors import UsageError, known_name


class Draw:
    """Random numbers for the examples of one step.

    Args:
        seed: of the step
        total: the number of examples in the step, over all processes
        rows: those of them that this process has
        device: where the numbers are wanted; they are drawn on the CPU, the same for every device

    >>> whole, half = Draw(0, total=4), Draw(0, total=4, rows=slice(0, None, 2))
    >>> torch.equal(whole.uniform(2)[::2], half.uniform(2))
    True
    """

    def __init__(self, seed: int, *, total: int, rows: slice = slice(None), device: torch.device | str = "cpu") -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.total, self.rows, self.device = total, rows, device

    def uniform(self, *shape: int) -> Tensor:
        """Numbers from 0 to 1, (B, *shape)."""
        return torch.rand(self.total, *shape, generator=self.generator)[self.rows].to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high`, both included, (B, *shape)."""
        drawn = torch.randint(low, high + 1, (self.total, *shape), generator=self.generator)
        return drawn[self.rows].to(self.device)


Transform = Callable[[Tensor, Tensor, Draw], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Flip:
    """Mirrors each image with a probability, and its mask with it.

    >>> Flip(1.0)(torch.arange(3.0).expand(1, 1, 1, 3), torch.tensor([0]), Draw(0, total=1))[0]
    tensor([[[[2., 1., 0.]]]])
    """

    probability: float = 0.5

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B, …) -> the same."""
        _images(x, "flip")
        chosen = draw.uniform() < self.probability
        return _where(chosen, x.flip(-1), x), _where(chosen, target.flip(-1), target) if _is_mask(target) else target


@dataclass(frozen=True)
class Crop:
    """Shifts each image by up to `shift` pixels each way, and its mask with it; pixels at the edge are repeated.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> Crop(0)(x, torch.tensor([0]), Draw(0, total=1))[0].equal(x)
    True
    """

    shift: int = 4

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B, …) -> the same."""
        _images(x, "crop")
        moved = draw.integers(-self.shift, self.shift, 2)
        rows, columns = (
            (torch.arange(size, device=x.device) + moved[:, axis, None]).clamp(0, size - 1)
            for axis, size in enumerate(x.shape[2:])
        )
        example = torch.arange(len(x), device=x.device)[:, None, None]
        taken = x.permute(0, 2, 3, 1)[example, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
        if not _is_mask(target):
            return taken, target
        soft = target.ndim == 4  # (B, C, H, W)
        masks = target.permute(0, 2, 3, 1) if soft else target
        masks = masks[example, rows[:, :, None], columns[:, None]]
        return taken, masks.permute(0, 3, 1, 2) if soft else masks


@dataclass(frozen=True)
class Color:
    """Changes brightness and contrast of each image by up to a factor of 1 - `strength` to 1 + `strength`.

    >>> grey = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    >>> Color(0.0)(grey, torch.tensor([0]), Draw(0, total=1))[0].unique()
    tensor([100], dtype=torch.uint8)
    """

    strength: float = 0.3

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B, …) -> the same."""
        _images(x, "color")
        factor = (1 + self.strength * (2 * draw.uniform(2, 1, 1, 1) - 1)).unbind(1)
        to_float32 = x.float()
        mean = to_float32.mean((1, 2, 3), keepdim=True)
        changed = ((to_float32 - mean) * factor[0] + mean) * factor[1]
        return (changed.round().clamp(0, 255) if x.dtype == torch.uint8 else changed).to(x.dtype), target


@dataclass(frozen=True)
class Cutout:
    """Blanks a square in each image, a `part` of its shorter side wide: DeVries & Taylor 2017. Masks stay.

    >>> int((Cutout(0.5)(torch.ones(1, 1, 8, 8), torch.tensor([0]), Draw(0, total=1))[0] == 0).sum()) <= 16
    True
    """

    part: float = 0.25

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """(B, C, H, W), (B, …) -> the same."""
        _images(x, "cutout")
        side, at = max(round(self.part * min(x.shape[2:])), 1), draw.uniform(2)
        near = [
            ((torch.arange(size, device=x.device) - (at[:, axis, None] * size).floor() + side // 2).long())
            for axis, size in enumerate(x.shape[2:])
        ]
        rows, columns = ((place >= 0) & (place < side) for place in near)
        return x.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0), target


@dataclass(frozen=True)
class Compose:
    """Several transforms, one after another."""

    transforms: tuple[Transform, ...]

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """(B, …), (B, …) -> the same."""
        for transform in self.transforms:
            x, target = transform(x, target, draw)
        return x, target


NAMES = ("flip", "crop", "color", "cutout")
_READY: tuple[Callable[[], Transform], ...] = (Flip, Crop, Color, Cutout)


def build(names: str | Sequence[str] | None, own: Transform | None = None) -> Transform | None:
    """The transforms of some names, "flip,crop", in this order, then one of the caller's own; None if there are none.

    >>> build("flip,crop")
    Compose(transforms=(Flip(probability=0.5), Crop(shift=4)))
    """
    chosen = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names or ())
    for name in chosen:
        known_name("transform", name, NAMES)
    transforms = (*(_READY[NAMES.index(name)]() for name in chosen), *([] if own is None else [own]))
    return Compose(transforms) if transforms else None


def applied(transform: Transform, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """The transformed batch; raises UsageError in one line for a transform that fails or changes the batch's size."""
    try:
        found = transform(x, target, draw)
        new_x, new_target = found
        sizes = (len(new_x), tuple(new_target.shape))
    except UsageError:
        raise
    except Exception as problem:
        raise UsageError(
            "Expected a transform (x, target, draw) -> (x, target), got "
            f"{type(problem).__name__}: {problem}. The last checkpoint is kept; resume with a transform that works."
        ) from problem
    soft = len(sizes[1]) == target.ndim + 1 and sizes[1][0] == len(x) and new_target.is_floating_point()
    if sizes != (len(x), tuple(target.shape)) and not (soft and sizes[0] == len(x)):
        raise UsageError(
            f"Expected a transform that keeps the number of examples and the shape of targets, {len(x)} and "
            f"{tuple(target.shape)}, or makes them soft (B, C, …), got {sizes[0]} and {sizes[1]}."
        )
    return new_x, new_target


def _images(x: Tensor, name: str) -> None:
    if x.ndim != 4:
        raise UsageError(f"Expected images (B, C, H, W) for {name}, got examples of shape {tuple(x.shape[1:])}.")


def _is_mask(target: Tensor) -> bool:
    """Whether a target moves with the image: classes (B, H, W) or probabilities (B, C, H, W) of its pixels."""
    return target.ndim > 2


def _where(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)

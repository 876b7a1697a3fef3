"""Augmentation by random transforms of training batches. A resumed run applies exactly the same transforms.

A transform is any callable (x (B, …), target (B, …), draw) -> (x, target). It receives examples before preprocessing
and must not change their number. `draw` provides random numbers, which depend only on the seed, epoch and batch. These
numbers are drawn for all examples of a step, and each process uses those of its own examples, so the result does not
depend on the number of processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.errors import UsageError, known_name


class Draw:
    """Random numbers for the examples of one step.

    Args:
        seed: the seed of the step
        total: the number of examples in the step, over all processes
        rows: the step's examples that this process receives, as a slice or as positions
        device: the device of the numbers, which are drawn on the CPU and are the same on every device

    >>> full, half = Draw(0, total=4), Draw(0, total=4, rows=slice(0, None, 2))
    >>> torch.equal(full.uniform(2)[::2], half.uniform(2))
    True
    """

    def __init__(
        self, seed: int, *, total: int, rows: slice | Tensor = slice(None), device: torch.device | str = "cpu"
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.total, self.rows, self.device = total, rows, device

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers between 0 and 1, (B, *shape)."""
        return torch.rand(self.total, *shape, generator=self.generator)[self.rows].to(self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Draw integers from `low` to `high`, both included, (B, *shape)."""
        drawn = torch.randint(low, high + 1, (self.total, *shape), generator=self.generator)
        return drawn[self.rows].to(self.device)


Transform = Callable[[Tensor, Tensor, Draw], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Flip:
    """Mirror each image and its mask horizontally with the given `probability`.

    >>> Flip(1.0)(torch.arange(3.0).expand(1, 1, 1, 3), torch.tensor([0]), Draw(0, total=1))[0]
    tensor([[[[2., 1., 0.]]]])
    """

    probability: float = 0.5

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Transform images (B, C, H, W) and targets (B, …)."""
        _check_images(x, "flip")
        chosen = draw.uniform() < self.probability
        return _where(chosen, x.flip(-1), x), _where(chosen, target.flip(-1), target) if _is_mask(target) else target


@dataclass(frozen=True)
class Crop:
    """Shift each image and its mask by up to `shift` pixels along each axis; pixels at the edge are repeated.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> Crop(0)(x, torch.tensor([0]), Draw(0, total=1))[0].equal(x)
    True
    """

    shift: int = 4

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Transform images (B, C, H, W) and targets (B, …)."""
        _check_images(x, "crop")
        shift = draw.integers(-self.shift, self.shift, 2)
        rows, columns = (
            (torch.arange(size, device=x.device) + shift[:, axis, None]).clamp(0, size - 1)
            for axis, size in enumerate(x.shape[2:])
        )
        example = torch.arange(len(x), device=x.device)[:, None, None]

        def cropped(images: Tensor) -> Tensor:
            moved = images.movedim(1, -1) if images.ndim == 4 else images
            moved = moved[example, rows[:, :, None], columns[:, None]]
            return moved.movedim(-1, 1) if images.ndim == 4 else moved

        return cropped(x), cropped(target) if _is_mask(target) else target


@dataclass(frozen=True)
class Color:
    """Multiply the brightness and contrast of each image by random factors from 1 - `strength` to 1 + `strength`.

    >>> gray = torch.full((1, 3, 2, 2), 100, dtype=torch.uint8)
    >>> Color(0.0)(gray, torch.tensor([0]), Draw(0, total=1))[0].unique()
    tensor([100], dtype=torch.uint8)
    """

    strength: float = 0.3

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Transform images (B, C, H, W) and targets (B, …)."""
        _check_images(x, "color")
        factor = (1 + self.strength * (2 * draw.uniform(2, 1, 1, 1) - 1)).unbind(1)
        values = x.float()
        mean = values.mean((1, 2, 3), keepdim=True)
        changed = ((values - mean) * factor[0] + mean) * factor[1]
        return (changed.round().clamp(0, 255) if x.dtype == torch.uint8 else changed).to(x.dtype), target


@dataclass(frozen=True)
class Cutout:
    """Set a random square in each image to 0 (DeVries and Taylor, 2017). Masks do not change.

    `part` is the side of the square as a fraction of the image's shorter side.

    >>> int((Cutout(0.5)(torch.ones(1, 1, 8, 8), torch.tensor([0]), Draw(0, total=1))[0] == 0).sum()) <= 16
    True
    """

    part: float = 0.25

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Transform images (B, C, H, W) and targets (B, …)."""
        _check_images(x, "cutout")
        side, center = max(round(self.part * min(x.shape[2:])), 1), draw.uniform(2)
        offsets = [
            ((torch.arange(size, device=x.device) - (center[:, axis, None] * size).floor() + side // 2).long())
            for axis, size in enumerate(x.shape[2:])
        ]
        rows, columns = ((offset >= 0) & (offset < side) for offset in offsets)
        return x.masked_fill((rows[:, :, None] & columns[:, None])[:, None], 0), target


@dataclass(frozen=True)
class Compose:
    """Apply several transforms in order."""

    transforms: tuple[Transform, ...]

    def __call__(self, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Transform examples (B, …) and targets (B, …)."""
        for transform in self.transforms:
            x, target = transform(x, target, draw)
        return x, target


NAMES = ("flip", "crop", "color", "cutout")  # a literal, so that the command line can read it without importing torch
_TRANSFORMS: dict[str, type[Flip | Crop | Color | Cutout]] = dict(zip(NAMES, (Flip, Crop, Color, Cutout), strict=True))


def build(names: str | Sequence[str] | None, custom: Transform | None = None) -> Transform | None:
    """Build a transform from names.

    Args:
        names: names in `NAMES`, in a list or separated by commas
        custom: a transform to apply after the named ones

    Returns:
        A single transform that applies all given transforms in order, or None if there are none.

    Raises:
        UsageError: if a name is unknown.

    >>> build("flip,crop")
    Compose(transforms=(Flip(probability=0.5), Crop(shift=4)))
    """
    chosen = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names or ())
    for name in chosen:
        known_name("transform", name, NAMES)
    transforms = (*(_TRANSFORMS[name]() for name in chosen), *([] if custom is None else [custom]))
    return Compose(transforms) if transforms else None


def transforms_each_example(transform: Transform | None) -> bool:
    """Return whether a transform is known to change each example separately, which custom ones may not do.

    >>> transforms_each_example(build("flip,crop")), transforms_each_example(lambda x, target, draw: (x, target))
    (True, False)
    """
    parts = transform.transforms if isinstance(transform, Compose) else (transform,)
    return all(part is None or isinstance(part, tuple(_TRANSFORMS.values())) for part in parts)


def apply_transform(transform: Transform, x: Tensor, target: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """Transform a batch; raise UsageError if the transform fails or changes the batch size or the targets' shape."""
    try:
        new_x, new_target = transform(x, target, draw)
        size, shape = len(new_x), tuple(new_target.shape)
    except UsageError:
        raise
    except Exception as problem:
        what = f"{type(problem).__name__}: {problem}. The last checkpoint is kept; correct the transform and resume."
        raise UsageError(f"The transform (x, target, draw) -> (x, target) failed with {what}") from problem
    soft = len(shape) == target.ndim + 1 and shape[0] == len(x) and new_target.is_floating_point()
    if size != len(x) or not (soft or shape == tuple(target.shape)):
        expected = f"{len(x)} examples and targets {tuple(target.shape)} or (B, C, …)"
        raise UsageError(f"Expected {expected} from the transform, got {size} and {shape}.")
    return new_x, new_target


def _check_images(x: Tensor, name: str) -> None:
    if x.ndim != 4:
        raise UsageError(f"Expected images (B, C, H, W) for {name}, got examples of shape {tuple(x.shape[1:])}.")


def _is_mask(target: Tensor) -> bool:
    """Return whether each pixel has a target, (B, H, W) or (B, C, H, W), which must then move with the image."""
    return target.ndim > 2


def _where(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)

import re
from functools import cache

import torch
from torch import Tensor

from torchmcl.errors import UsageError


def check_shapes(pattern: str, *tensors: Tensor, empty: bool = False) -> None:
    """Raise UsageError if tensors do not have the shapes in a pattern, or if one is empty and `empty` is False.

    Each letter stands for the same size in all tensors. `…` stands for any number of axes, which must
    also have the same sizes.

    >>> check_shapes("probabilities (M, B, C) and target (B,)", torch.zeros(5, 64, 10), torch.zeros(32))
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected probabilities (M, B, C) and target (B,), got (5, 64, 10) and (32,).
    """
    sizes: dict[str, object] = {}
    matches = all(_matches(axes, tensor.shape, sizes) for axes, tensor in zip(_axes(pattern), tensors, strict=True))
    if not matches or (not empty and any(tensor.numel() == 0 for tensor in tensors)):
        expected = f"non-empty {pattern}" if matches else pattern
        raise UsageError(f"Expected {expected}, got {' and '.join(str(tuple(tensor.shape)) for tensor in tensors)}.")


@cache
def _axes(pattern: str) -> tuple[tuple[str, ...], ...]:
    """Return the axes of each tensor: "weights (M, B) and group (B,)" -> (("M", "B"), ("B",))."""
    return tuple(tuple(re.findall(r"[^\s,]+", axes)) for axes in re.findall(r"\((.*?)\)", pattern))


def _matches(axes: tuple[str, ...], shape: torch.Size, sizes: dict[str, object]) -> bool:
    """Store the size of each axis in `sizes`; return False if an axis already has another size there."""
    named = len(axes) - 1
    actual = (*shape[:named], tuple(shape[named:])) if axes[-1] == "…" else tuple(shape)
    return len(actual) == len(axes) and all(
        sizes.setdefault(axis, size) == size for axis, size in zip(axes, actual, strict=True)
    )

import re
from functools import cache

import torch
from torch import Tensor

from torchmcl.errors import UsageError


def check(pattern: str, *tensors: Tensor, empty: bool = False) -> None:
    """Raise unless the tensors have the shapes that the pattern names, one size a letter, and something in them.

    `…` stands for any further axes, the same ones wherever it occurs.

    >>> check("probabilities (M, B, C, …) and target (B, …)", torch.zeros(5, 64, 10, 8, 8), torch.zeros(64, 8, 8))
    >>> check("probabilities (M, B, C) and target (B,)", torch.zeros(5, 64, 10), torch.zeros(32))
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected probabilities (M, B, C) and target (B,), got (5, 64, 10) and (32,).
    """
    sizes: dict[str, object] = {}
    fit = all(_fits(axes, tensor.shape, sizes) for axes, tensor in zip(_axes(pattern), tensors, strict=True))
    if not fit or (not empty and any(tensor.numel() == 0 for tensor in tensors)):
        expected = f"{pattern} that are not empty" if fit else pattern
        raise UsageError(f"Expected {expected}, got {' and '.join(str(tuple(tensor.shape)) for tensor in tensors)}.")


@cache
def _axes(pattern: str) -> tuple[tuple[str, ...], ...]:
    """The axes of each bracket: "weights (M, B) and group (B,)" -> (("M", "B"), ("B",))."""
    return tuple(tuple(re.findall(r"[^\s,]+", axes)) for axes in re.findall(r"\((.*?)\)", pattern))


def _fits(axes: tuple[str, ...], shape: torch.Size, sizes: dict[str, object]) -> bool:
    """Bind each axis to its size, `…` to all the sizes that are left; false where a name already has another size."""
    named = len(axes) - 1
    found = (*shape[:named], tuple(shape[named:])) if axes[-1] == "…" else tuple(shape)
    return len(found) == len(axes) and all(
        sizes.setdefault(axis, size) == size for axis, size in zip(axes, found, strict=True)
    )

from math import isfinite

from torch import Tensor

from torchmcl.errors import UsageError


def valid_rows(target: Tensor) -> Tensor:
    """Return which of several targets per example are not padding, (B, T, D) -> bool (B, T).

    >>> import torch
    >>> valid_rows(torch.tensor([[[1.0, 2.0], [torch.nan, torch.nan]]]))
    tensor([[ True, False]])
    """
    return ~target.isnan().all(-1)


def check_finite(target: Tensor) -> None:
    """Raise UsageError if a number to predict, (B, D) or (B, T, D), is not finite; padding, rows of NaN, is allowed."""
    # The sum is finite only if all terms are. This is faster than a test of each number.
    if isfinite(target.sum()):
        return
    finite = target.isfinite()
    if target.ndim == 3:
        valid = valid_rows(target)
        if not bool(valid.any(1).all()):
            first = int((~valid.any(1)).nonzero()[0])
            raise UsageError(f"Example {first} has no target, only padding. Remove examples without targets.")
        finite = finite | ~valid.unsqueeze(2)
    if not bool(finite.all()):
        first, value = int((~finite).nonzero()[0, 0]), float(target[~finite][0])
        raise UsageError(
            f"Expected finite targets, got {value} in example {first}. Remove or impute it. Only the padding of "
            "several targets per example, (B, T, D), is NaN."
        )

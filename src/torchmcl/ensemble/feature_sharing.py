from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.autograd import custom_grad
from torchmcl.errors import UsageError


class FeatureSharing(nn.Module):
    """Add random parts of the other members' features to each member's own, as in CMCL (Lee et al. 2017).

    out_m = h_m + sum_{n != m} mask_nm * h_n. Each element of a mask is 1 with probability `keep`. One mask is drawn
    for each ordered pair of members. The masked features are not rescaled.

    Args:
        keep: the probability of keeping an element
        at_test: "random" draws masks in evaluation mode too, as in the paper. "expected" uses their expectation,
            out_m = h_m + keep * sum_{n != m} h_n, so that results are deterministic

    Raises:
        UsageError: if `keep` is not in (0, 1] or `at_test` is unknown

    >>> FeatureSharing(keep=0.7).eval()([torch.zeros(1), torch.ones(1)])
    [tensor([0.7000]), tensor([1.])]
    """

    shared_stem = False

    def __init__(self, *, keep: float = 0.7, at_test: str = "expected") -> None:
        super().__init__()
        if not 0 < keep <= 1:
            raise UsageError(f"Expected 0 < keep <= 1, got {keep}.")
        if at_test not in ("expected", "random"):
            raise UsageError(f"Expected at_test to be 'expected' or 'random', got {at_test!r}.")
        self.keep, self.at_test = keep, at_test

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M of (B, D, …)."""
        if not self.training and self.at_test == "expected":
            total = torch.stack(list(features)).sum(0)
            return [torch.lerp(h, total, self.keep) for h in features]
        return [self._mix(h, [other for n, other in enumerate(features) if n != m]) for m, h in enumerate(features)]

    def _mix(self, h: Tensor, others: Sequence[Tensor]) -> Tensor:
        add = _MaskedAdd.apply if custom_grad() else _masked_add
        for other in others:
            h = add(h, other, bernoulli_mask(other, self.keep))
        return h


def _masked_add(h: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    return torch.addcmul(h, other, _as_numbers(mask, other.dtype))  # `torch.where` is several times slower


class _MaskedAdd(torch.autograd.Function):
    """Computes `_masked_add`, but stores the mask with one byte per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return _masked_add(h, other, mask)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient, gradient * _as_numbers(mask, gradient.dtype), None


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return mask.view(torch.uint8).to(dtype)  # several times faster than converting booleans


def bernoulli_mask(like: Tensor, probability: float) -> Tensor:
    """Draw a mask with the shape and layout of `like`; each element is True with `probability`, rounded to 16 bits."""
    # Drawing masks takes up much of the time for feature sharing, so each 64-bit number provides four elements.
    drawn = like.new_empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    mask = drawn.view(torch.int16)[: like.numel()] <= round(probability * 2**16) - 2**15 - 1
    strides = torch.empty_like(like, device="meta").stride()
    # In vmap, the examples of a tensor can be interleaved in memory; the mask of one example cannot have that layout.
    dense = sum((size - 1) * stride for size, stride in zip(like.shape, strides, strict=True)) < like.numel()
    return mask.as_strided(like.shape, strides) if dense else mask.view(like.shape)

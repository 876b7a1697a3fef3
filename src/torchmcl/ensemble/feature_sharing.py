from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.autograd import by_hand
from torchmcl.errors import UsageError


class FeatureSharing(nn.Module):
    """out_m = h_m + sum_{n != m} mask_nm * h_n, mask Bernoulli(keep) for every element: CMCL, Lee et al. 2017.

    Masks are drawn anew for each ordered pair, without rescaling. At test they are random in the original; the default
    here is their expectation, out_m = h_m + keep * sum_{n != m} h_n, which gives the same answer twice.

    >>> FeatureSharing(keep=0.7).eval()([torch.zeros(1), torch.ones(1)])
    [tensor([0.7000]), tensor([1.])]
    """

    shared_stem = False

    def __init__(self, *, keep: float = 0.7, at_test: str = "expected") -> None:
        super().__init__()
        if not 0 < keep <= 1:
            raise UsageError(f"Expected to keep a part above 0 and up to 1, got {keep}.")
        if at_test not in ("expected", "random"):
            raise UsageError(f"Expected at_test 'expected' or 'random', got {at_test!r}.")
        self.keep = keep
        self.at_test = at_test

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M of (B, D, …)."""
        if not self.training and self.at_test == "expected":
            everyone = torch.stack(list(features)).sum(0)
            return [torch.lerp(h, everyone, self.keep) for h in features]
        return [self._mixed(h, [other for n, other in enumerate(features) if n != m]) for m, h in enumerate(features)]

    def _mixed(self, h: Tensor, others: Sequence[Tensor]) -> Tensor:
        for other in others:
            mask = some(other, self.keep)
            h = _Added.apply(h, other, mask) if by_hand() else torch.addcmul(h, other, _numbers(mask, other.dtype))  # type: ignore[no-untyped-call]
        return h


class _Added(torch.autograd.Function):
    """h + mask * other, the mask kept as a byte an element; `torch.where` takes several times as long."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return torch.addcmul(h, other, _numbers(mask, other.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradient, gradient * _numbers(mask, gradient.dtype), None


def _numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 and 1; from bytes they are had several times faster than from truth values."""
    return mask.view(torch.uint8).to(dtype)


def some(like: Tensor, part: float) -> Tensor:
    """A mask of a tensor's form, each element True with probability `part`, to 16 bits.

    Four elements share each number drawn: drawing is much of the time that feature sharing takes.

    >>> _ = torch.manual_seed(0)
    >>> round(float(some(torch.zeros(100, 100), 0.7).float().mean()), 1)
    0.7
    """
    drawn = like.new_empty(-(-like.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = drawn.view(torch.int16)[: like.numel()] <= round(part * 2**16) - 2**15 - 1
    strides = torch.empty_like(like, device="meta").stride()
    # Within vmap the examples of a tensor can lie interleaved, where a mask of one example cannot follow.
    dense = sum((size - 1) * stride for size, stride in zip(like.shape, strides, strict=True)) < like.numel()
    return kept.as_strided(like.shape, strides) if dense else kept.view(like.shape)

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl._utils.autograd import by_hand, transformed
from torchmcl.errors import UsageError, known_name

PRESETS = ("default", "paper_count", "light")


class FeatureFusion(nn.Module):
    """One feature of all members' features, given back to every member: section 3.3 of Kim et al. 2022.

    The paper says that features are concatenated, passed through attention "similar to" BAM and CBAM and that everyone
    gets the result; the rest is inferred, in three presets:

    - `default`: BAM with reduction 2 and one dilated convolution, then a learned 3x3 reduction, batch norm, ReLU;
    - `paper_count`: the same BAM and a sum over the members, which has the paper's number of parameters;
    - `light`: CBAM's channel attention, a 1x1 reduction, and its spatial attention, a twentieth of the cost.

    >>> fusion = FeatureFusion(features=8, members=3, preset="light")
    >>> [h.shape for h in fusion([torch.randn(2, 8, 5, 7) for _ in range(3)])]
    [torch.Size([2, 8, 5, 7]), torch.Size([2, 8, 5, 7]), torch.Size([2, 8, 5, 7])]
    """

    shared_stem = False

    def __init__(self, features: int, members: int, *, preset: str = "default") -> None:
        super().__init__()
        known_name("preset", preset, PRESETS)
        width = features * members
        self.features = features
        self.members = members
        self.together: nn.Module
        match preset:
            case "default":
                self.together = Concatenated(Attention(width), convolution(width, features, 3))
            case "paper_count":
                self.together = Concatenated(Attention(width), SumOfMembers(members))
            case "light":
                self.together = LightFusion(features, members)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M times the same (B, D, …)."""
        shape = features[0].shape
        if shape[1] != self.features:
            raise UsageError(
                f"Expected features with {self.features} channels at the cut, got {tuple(shape)}. "
                f"State them: Split(stem, body, features={shape[1]})."
            )
        maps = [h[:, :, None, None] if h.ndim == 2 else h for h in features]
        return [self.together(maps).view(shape)] * self.members


class Concatenated(nn.Sequential):
    """Layers that see the members' maps, M of (B, D, H, W), as one of (B, M D, H, W)."""

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """M of (B, D, H, W) -> (B, D, H, W)."""
        together = torch.cat(list(maps), dim=1)
        for layer in self:
            together = layer(together)
        return together


class Attention(nn.Module):
    """BAM, Park et al. 2018: F + F * sigmoid(channel(F) + spatial(F)), here with one dilated convolution."""

    def __init__(self, width: int, *, reduction: int = 2, dilation: int = 4) -> None:
        super().__init__()
        narrow = max(width // reduction, 1)
        self.channel = nn.Sequential(
            nn.Linear(width, narrow),
            PooledNorm(narrow),
            nn.ReLU(inplace=True),
            nn.Linear(narrow, width),
        )
        self.spatial = nn.Sequential(
            nn.Conv2d(width, narrow, 1),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, narrow, 3, padding=dilation, dilation=dilation),
            nn.BatchNorm2d(narrow),
            nn.ReLU(inplace=True),
            nn.Conv2d(narrow, 1, 1),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, D, H, W)."""
        average = maps.sum((2, 3)) / maps[0, 0].numel()  # the gradient of mean() would be written out whole
        channel, spatial = self.channel(average), self.spatial(maps)
        gate = _gate(maps, channel, spatial)
        return _Gated.apply(maps, gate) if by_hand() else torch.addcmul(maps, maps, gate)  # type: ignore[no-untyped-call]


def _gate(maps: Tensor, channel: Tensor, spatial: Tensor) -> Tensor:
    """sigmoid(channel (B, D) + spatial (B, 1, H, W)), laid out as channels-last maps (B, D, H, W) are.

    In the layout that a plain sum would have, whatever it meets the maps in takes up to six times as long.
    """
    together = channel.to(maps.dtype)[:, None, None] + spatial.to(maps.dtype).permute(0, 2, 3, 1)
    return together.sigmoid_().permute(0, 3, 1, 2)


class _Gated(torch.autograd.Function):
    """F + F * gate; the gradient of F is one pass over memory."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(maps, gate)
        return torch.addcmul(maps, maps, gate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        maps, gate = ctx.saved_tensors
        return torch.addcmul(gradient, gradient, gate), gradient * maps


class LightFusion(nn.Module):
    """CBAM's attention, Woo et al. 2018, around a 1x1 reduction: R = W (F * channel(F)), then R * spatial(R).

    Both gates are sigmoids of averages and maxima. The channel gate goes into the weights, W_b = W * channel(F_b), and
    the members' maps are summed as they are multiplied, so that neither a gated nor a concatenated copy of the features
    is made; the spatial gate, which commutes with W, works on the reduced map.
    """

    def __init__(self, features: int, members: int, *, reduction: int = 16, window: int = 7) -> None:
        super().__init__()
        width = features * members
        narrow = max(width // reduction, 1)
        self.channel = nn.Sequential(nn.Linear(width, narrow), nn.ReLU(inplace=True), nn.Linear(narrow, width))
        self.reduce = nn.Linear(width, features, bias=False)
        self.spatial = nn.Conv2d(2, 1, window, padding=window // 2, bias=False)
        self.finish = nn.Sequential(nn.BatchNorm2d(features), nn.ReLU(inplace=True))

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """M of (B, D, H, W) -> (B, D, H, W)."""
        own = by_hand()
        average, highest, *later = _Pool.apply(*maps) if own else _pool(maps)  # type: ignore[no-untyped-call]
        gate = torch.sigmoid(self.channel(average) + self.channel(highest))
        weights = (gate[:, :, None] * self.reduce.weight.T).to(maps[0].dtype)
        fused = _Product.apply(weights, *later, *maps) if own else _product(weights, maps)  # type: ignore[no-untyped-call]
        summary = _Summary.apply(fused) if own else _summary(fused)  # type: ignore[no-untyped-call]
        return self.finish(fused * torch.sigmoid(self.spatial(summary)))


def _rows(h: Tensor) -> Tensor:
    """(B, D, H, W) -> (B, H W, D), as a channels-last map lies in memory."""
    return h.permute(0, 2, 3, 1).flatten(1, 2)


def _pool(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """M of (B, D, H, W) -> average (B, M D), maximum (B, M D), and at which pixel that is, M of (B, 1, D)."""
    highest, at = zip(*(F.adaptive_max_pool2d(h, 1, return_indices=True) for h in maps), strict=True)
    average = torch.cat([h.mean((2, 3)) for h in maps], 1)
    return average, torch.cat(highest, 1).flatten(1), [_rows(pixel) for pixel in at]


def _by_member(weights: Tensor, features: int) -> list[Tensor]:
    """(B, M D, E) -> M of (B, D, E), copied: batched products of slices are up to three times slower."""
    return [part.contiguous() for part in weights.split(features, dim=1)]


def _product(weights: Tensor, maps: Sequence[Tensor]) -> Tensor:
    """Weights (B, M D, E), M of (B, D, H, W) -> their sum over M and D, (B, E, H, W)."""
    first, *others = _by_member(weights, maps[0].shape[1])
    add = torch.baddbmm if transformed() else Tensor.baddbmm_  # vmap has no rule for the second
    out = _rows(maps[0]) @ first
    for h, weight in zip(maps[1:], others, strict=True):
        out = add(out, _rows(h), weight)
    return out.unflatten(1, maps[0].shape[2:]).permute(0, 3, 1, 2)


class _Pool(torch.autograd.Function):
    """`_pool`, with the gradient of `_product` in its own: that of the features is written once, not summed up.

    Its backward pass needs the weights (B, M D, E) of `_Product` and the gradient of its output (B, H W, E), which do
    not exist yet in its forward pass. Two outputs without content carry them: `_Product` takes both as inputs and
    returns these tensors in place of their gradients. So autograd keeps the order, and repeated, partial and second
    derivatives are right.
    """

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        average, highest, at = _pool(maps)
        ctx.size = maps[0].shape[2:]
        ctx.save_for_backward(*at)
        nothing, (B, D) = maps[0].new_zeros(()), maps[0].shape[:2]
        return average, highest, nothing.expand(*average.shape, D), nothing.expand(B, ctx.size.numel(), D)

    @staticmethod
    def backward(ctx: Any, average: Tensor, highest: Tensor, weights: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        D = weights.shape[2]
        parts = zip(
            ctx.saved_tensors,
            _by_member(weights, D),
            (average[:, None] / ctx.size.numel()).to(weights.dtype).split(D, dim=2),
            highest[:, None].to(weights.dtype).split(D, dim=2),
            strict=True,
        )
        rows = (torch.baddbmm(mean, gradient, weight.mT).scatter_add_(1, at, most) for at, weight, mean, most in parts)
        return tuple(row.unflatten(1, ctx.size).permute(0, 3, 1, 2) for row in rows)


class _Product(torch.autograd.Function):
    """`_product`, leaving the features' gradient to `_Pool`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, for_weights: Tensor, for_gradient: Tensor, *maps: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *maps)
        with torch.autocast(weights.device.type, enabled=False):
            return _product(weights, maps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, *maps = ctx.saved_tensors
        rows = _rows(gradient)
        own = torch.cat([_rows(h).transpose(1, 2) @ rows for h in maps], 1)
        return own, weights, rows, *(None for _ in maps)


def _summary(h: Tensor) -> Tensor:
    """(B, D, H, W) -> average and maximum over channels, (B, 2, H, W)."""
    return torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], dim=1)


class _Summary(torch.autograd.Function):
    """`_summary`, with a gradient that is written once."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        out = _summary(h)
        ctx.save_for_backward(h, out[:, 1:])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        h, highest = ctx.saved_tensors
        mean, most = gradient[:, :1] / h.shape[1], gradient[:, 1:]
        there = h == highest
        return torch.where(there, mean + most / there.sum(1, keepdim=True), mean)


class SumOfMembers(nn.Module):
    """(B, M D, H, W) -> (B, D, H, W), a sum over the members' slices."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members

    def forward(self, maps: Tensor) -> Tensor:
        """(B, M D, H, W) -> (B, D, H, W)."""
        return maps.unflatten(1, (self.members, -1)).sum(1)


class PooledNorm(nn.BatchNorm1d):
    """Batch normalisation of pooled features (B, D); a batch of one has no spread, so it is given the running one."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        if self.training and len(x) == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


def on_maps(module: nn.Module, features: Tensor) -> Tensor:
    """Apply a module for maps (B, D, H, W) to features of any form, vectors (B, D) being maps of one pixel."""
    if features.ndim != 2:
        return module(features)
    return module(features[:, :, None, None]).flatten(1)


def convolution(inputs: int, outputs: int, size: int, *, bias: bool = False) -> nn.Module:
    """A convolution that keeps the size of maps, batch normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl._utils.autograd import custom_grad, in_functorch_transform
from torchmcl.errors import UsageError, known_name

PRESETS = ("default", "paper_count", "light", "bam", "cbam")


class FeatureFusion(nn.Module):
    """Fuse the features of all members into one tensor for every member, as in AMCL (Kim et al. 2022, section 3.3).

    In the paper, the features are concatenated and passed through an attention module "similar to" BAM and CBAM. All
    other details are inferred [I].

    Args:
        features: the number of channels D of each member
        members: the number of members M
        preset: "default" is BAM with reduction 2 and one dilated convolution, followed by a 3x3 convolution to D
            channels, batch normalisation and ReLU. "paper_count" is the same BAM and a sum over members, with the
            paper's number of parameters. "light" is CBAM's channel attention, a 1x1 convolution to D channels and
            CBAM's spatial attention, at a twentieth of the default's cost. "bam" and "cbam" are the modules of their
            official code, followed by the default's 3x3 convolution

    Raises:
        UsageError: if the preset is unknown, or inputs do not have D channels

    >>> fusion = FeatureFusion(features=8, members=3, preset="light")
    >>> [h.shape for h in fusion([torch.randn(2, 8, 5, 7) for _ in range(3)])]
    [torch.Size([2, 8, 5, 7]), torch.Size([2, 8, 5, 7]), torch.Size([2, 8, 5, 7])]
    """

    shared_stem = False

    def __init__(self, features: int, members: int, *, preset: str = "default") -> None:
        super().__init__()
        known_name("preset", preset, PRESETS)
        width = features * members
        self.features, self.members = features, members
        if preset == "default":
            self.together: nn.Module = Concatenated(Attention(width), convolution(width, features, 3))
        elif preset == "paper_count":
            self.together = Concatenated(Attention(width), MemberSum(members))
        elif preset == "light":
            self.together = LightFusion(features, members)
        else:
            bam = preset == "bam"
            attention = Attention(width, reduction=16, dilated=2, product=True) if bam else SequentialAttention(width)
            self.together = Concatenated(attention, convolution(width, features, 3))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M times the same (B, D, …)."""
        shape = features[0].shape
        if shape[1] != self.features:
            fix = f"Pass Split(stem, body, features={shape[1]})"
            raise UsageError(f"Expected {self.features} channels at the cut, got {tuple(shape)}. {fix}.")
        maps = [h[:, :, None, None] if h.ndim == 2 else h for h in features]
        return [self.together(maps).view(shape)] * self.members


class Concatenated(nn.Sequential):
    """Layers applied to the concatenated maps of all members, (B, M D, H, W)."""

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """M of (B, D, H, W) -> (B, D, H, W)."""
        return super().forward(torch.cat(list(maps), dim=1))  # type: ignore[no-untyped-call]


class Attention(nn.Module):
    """BAM, F + F * sigmoid(channel(F) + spatial(F)) (Park et al. 2018).

    The official code has a `product` in place of the sum, reduction 16 and two dilated convolutions.
    """

    def __init__(
        self, width: int, *, reduction: int = 2, dilation: int = 4, dilated: int = 1, product: bool = False
    ) -> None:
        super().__init__()
        narrow, self.product = max(width // reduction, 1), product
        hidden = (nn.Linear(width, narrow), PooledNorm(narrow), nn.ReLU(inplace=True))
        self.channel = nn.Sequential(*hidden, nn.Linear(narrow, width))
        self.spatial = nn.Sequential(
            *convolution(width, narrow, 1, bias=True),
            *(layer for _ in range(dilated) for layer in convolution(narrow, narrow, 3, bias=True, dilation=dilation)),
            nn.Conv2d(narrow, 1, 1),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, D, H, W)."""
        average = maps.sum((2, 3)) / maps[0, 0].numel()  # mean() would expand its gradient in memory
        gate = _gate(maps, self.channel(average), self.spatial(maps), product=self.product)
        return _Gated.apply(maps, gate) if custom_grad() else torch.addcmul(maps, maps, gate)  # type: ignore[no-untyped-call]


def _gate(maps: Tensor, channel: Tensor, spatial: Tensor, *, product: bool) -> Tensor:
    """Return sigmoid(channel (B, D) + or * spatial (B, 1, H, W)) in the channels-last layout, (B, D, H, W)."""
    # With the memory layout of a plain sum, operations with the maps take up to six times as long.
    channel, spatial = channel.to(maps.dtype)[:, None, None], spatial.to(maps.dtype).permute(0, 2, 3, 1)
    total = channel * spatial if product else channel + spatial
    return total.sigmoid_().permute(0, 3, 1, 2)


class _Gated(torch.autograd.Function):
    """Computes F + F * gate, and the gradient with respect to F in one pass over memory."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, gate: Tensor) -> Tensor:
        ctx.save_for_backward(maps, gate)
        return torch.addcmul(maps, maps, gate)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        maps, gate = ctx.saved_tensors
        return torch.addcmul(gradient, gradient, gate), gradient * maps


class SequentialAttention(nn.Module):
    """CBAM as in its official code: F' = F * channel(F), then F' * spatial(F') (Woo et al. 2018).

    Both gates are sigmoids of averages and maxima. The 7x7 convolution of the spatial gate has batch normalisation.
    """

    def __init__(self, width: int, *, reduction: int = 16, window: int = 7) -> None:
        super().__init__()
        narrow = max(width // reduction, 1)
        self.channel = nn.Sequential(nn.Linear(width, narrow), nn.ReLU(inplace=True), nn.Linear(narrow, width))
        layer = nn.Conv2d(2, 1, window, padding=window // 2, bias=False)
        self.spatial = nn.Sequential(layer, nn.BatchNorm2d(1, momentum=0.01))

    def forward(self, maps: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, D, H, W)."""
        gate = torch.sigmoid(self.channel(maps.mean((2, 3))) + self.channel(maps.amax((2, 3))))
        maps = maps * gate.to(maps.dtype)[:, :, None, None]
        return maps * torch.sigmoid(self.spatial(_summary(maps)))


class LightFusion(nn.Module):
    """CBAM's attention with a 1x1 reduction W: R = W (F * channel(F)), then R * spatial(R) (Woo et al. 2018)."""

    # Both gates are sigmoids of averages and maxima. The channel gate multiplies the weights, W_b = W * channel(F_b).
    # The products with the members' maps are summed, so that no gated or concatenated copy of the features is needed.
    # The spatial gate commutes with W and is applied to the reduced map.

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
        custom = custom_grad()
        average, highest, *carriers = _Pool.apply(*maps) if custom else _pool(maps)  # type: ignore[no-untyped-call]
        gate = torch.sigmoid(self.channel(average) + self.channel(highest))
        weights = (gate[:, :, None] * self.reduce.weight.T).to(maps[0].dtype)
        fused = _Product.apply(weights, *carriers, *maps) if custom else _product(weights, maps)  # type: ignore[no-untyped-call]
        summary = _Summary.apply(fused) if custom else _summary(fused)  # type: ignore[no-untyped-call]
        return self.finish(fused * torch.sigmoid(self.spatial(summary)))


def _rows(h: Tensor) -> Tensor:
    """(B, D, H, W) -> (B, H W, D), the memory layout of a channels-last map."""
    return h.permute(0, 2, 3, 1).flatten(1, 2)


def _pool(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """M of (B, D, H, W) -> average (B, M D), maximum (B, M D), and the pixel of the maximum, M of (B, 1, D)."""
    highest, at = zip(*(F.adaptive_max_pool2d(h, 1, return_indices=True) for h in maps), strict=True)
    average = torch.cat([h.mean((2, 3)) for h in maps], 1)
    return average, torch.cat(highest, 1).flatten(1), [_rows(pixel) for pixel in at]


def _by_member(weights: Tensor, features: int) -> list[Tensor]:
    """(B, M D, E) -> M copies (B, D, E); batched products are up to three times slower with slices than with copies."""
    return [part.contiguous() for part in weights.split(features, dim=1)]


def _product(weights: Tensor, maps: Sequence[Tensor]) -> Tensor:
    """Multiply weights (B, M D, E) by maps, M of (B, D, H, W), and sum over M and D -> (B, E, H, W)."""
    first, *others = _by_member(weights, maps[0].shape[1])
    add = torch.baddbmm if in_functorch_transform() else Tensor.baddbmm_  # vmap does not support baddbmm_
    out = _rows(maps[0]) @ first
    for h, weight in zip(maps[1:], others, strict=True):
        out = add(out, _rows(h), weight)
    return out.unflatten(1, maps[0].shape[2:]).permute(0, 3, 1, 2)


class _Pool(torch.autograd.Function):
    """Computes `_pool`. Its backward pass includes that of `_product`, to write the features' gradient only once."""

    # The backward pass needs the weights (B, M D, E) of `_Product` and the gradient of its output (B, H W, E), which do
    # not exist in the forward pass. Two placeholder outputs carry them: `_Product` takes the placeholders as inputs and
    # returns the two tensors in place of the placeholders' gradients. Autograd then calls both backward passes in the
    # right order, and repeated, partial and second derivatives are correct.

    @staticmethod
    def forward(ctx: Any, *maps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        average, highest, at = _pool(maps)
        ctx.size = maps[0].shape[2:]
        ctx.save_for_backward(*at)
        empty, (B, D) = maps[0].new_zeros(()), maps[0].shape[:2]
        return average, highest, empty.expand(*average.shape, D), empty.expand(B, ctx.size.numel(), D)

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
        rows = (torch.baddbmm(mean, gradient, weight.mT).scatter_add_(1, at, top) for at, weight, mean, top in parts)
        return tuple(row.unflatten(1, ctx.size).permute(0, 3, 1, 2) for row in rows)


class _Product(torch.autograd.Function):
    """Computes `_product`, but leaves the gradient of the features to `_Pool`."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, weight_carrier: Tensor, gradient_carrier: Tensor, *maps: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *maps)
        with torch.autocast(weights.device.type, enabled=False):
            return _product(weights, maps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, *maps = ctx.saved_tensors
        rows = _rows(gradient)
        for_weights = torch.cat([_rows(h).transpose(1, 2) @ rows for h in maps], 1)
        return for_weights, weights, rows, *(None for _ in maps)


def _summary(h: Tensor) -> Tensor:
    """Return the average and the maximum over channels, (B, D, H, W) -> (B, 2, H, W)."""
    return torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], dim=1)


class _Summary(torch.autograd.Function):
    """Computes `_summary` and writes its gradient only once."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        out = _summary(h)
        ctx.save_for_backward(h, out[:, 1:])
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        h, highest = ctx.saved_tensors
        mean, top = gradient[:, :1] / h.shape[1], gradient[:, 1:]
        is_highest = h == highest
        return torch.where(is_highest, mean + top / is_highest.sum(1, keepdim=True), mean)


class MemberSum(nn.Module):
    """The sum of the maps of all members."""

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members

    def forward(self, maps: Tensor) -> Tensor:
        """(B, M D, H, W) -> (B, D, H, W)."""
        return maps.unflatten(1, (self.members, -1)).sum(1)


class PooledNorm(nn.BatchNorm1d):
    """Batch normalisation of pooled features, with running statistics for a batch of one, which has no variance."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, D)."""
        if self.training and len(x) == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


def apply_to_maps(module: nn.Module, features: Tensor) -> Tensor:
    """Apply a module for maps (B, D, H, W) to maps, or to vectors (B, D), treated as maps of one pixel."""
    if features.ndim != 2:
        return module(features)
    return module(features[:, :, None, None]).flatten(1)


def convolution(inputs: int, outputs: int, size: int, *, bias: bool = False, dilation: int = 1) -> nn.Sequential:
    """Build a convolution that preserves the size of maps, followed by batch normalisation and ReLU."""
    padding = dilation * (size // 2)
    layer = nn.Conv2d(inputs, outputs, size, padding=padding, dilation=dilation, bias=bias)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))

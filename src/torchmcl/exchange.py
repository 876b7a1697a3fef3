"""What members share low down: features (B, D, …) of each member's stem -> what each member's body goes on with."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.errors import UsageError, known_name
from torchmcl.split import Split

PRESETS = ("default", "paper_count", "light")


class Separate(nn.Module):
    """Nothing is exchanged."""

    shared_stem = False

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M of (B, D, …)."""
        return list(features)


class WeightSharing(nn.Module):
    """All members read the same features: one stem for everyone (vMCL, ONE).

    >>> len(WeightSharing(members=3)([torch.zeros(1, 8, 4, 4)]))
    3
    """

    shared_stem = True

    def __init__(self, members: int) -> None:
        super().__init__()
        self.members = members

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """1 of (B, D, …) -> M of (B, D, …)."""
        return list(features) * (self.members // len(features))


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
            h = torch.addcmul(h, other, torch.empty_like(other).bernoulli_(self.keep))
        return h


class FeatureFusion(nn.Module):
    """One feature of all members' features, given back to every member: section 3.3 of Kim et al. 2022.

    The paper says that features are concatenated, passed through attention "similar to" BAM and CBAM and that everyone
    gets the result; the rest is inferred, in three presets:

    - `default`: BAM with reduction 2 and one dilated convolution, then a learned 3x3 reduction, batch norm, ReLU;
    - `paper_count`: the same BAM and a sum over the members, which has the paper's number of parameters;
    - `light`: channel (reduction 16) and spatial (7x7) attention as CBAM's, a 1x1 reduction, a twentieth of the cost.

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
        self.attention = LightAttention(width) if preset == "light" else Attention(width)
        self.reduce: nn.Module
        match preset:
            case "default":
                self.reduce = _convolution(width, features, 3)
            case "paper_count":
                self.reduce = SumOfMembers(members)
            case "light":
                self.reduce = _convolution(width, features, 1)

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M times the same (B, D, …)."""
        if features[0].shape[1] != self.features:
            raise UsageError(
                f"Expected features with {self.features} channels at the cut, got {tuple(features[0].shape)}. "
                f"State them: Split(stem, body, features={features[0].shape[1]})."
            )
        fused = on_maps(nn.Sequential(self.attention, self.reduce), torch.cat(list(features), dim=1))
        return [fused] * self.members


class Attention(nn.Module):
    """BAM, Park et al. 2018: F + F * sigmoid(channel(F) + spatial(F)), here with one dilated convolution."""

    def __init__(self, width: int, *, reduction: int = 2, dilation: int = 4) -> None:
        super().__init__()
        narrow = max(width // reduction, 1)
        self.channel = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
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
        attention = torch.sigmoid(self.channel(maps)[:, :, None, None] + self.spatial(maps))
        return torch.addcmul(maps, maps, attention)


class LightAttention(nn.Module):
    """CBAM, Woo et al. 2018: F * channel(F), then F * spatial(F), each a sigmoid of averages and maxima."""

    def __init__(self, width: int, *, reduction: int = 16, window: int = 7) -> None:
        super().__init__()
        narrow = max(width // reduction, 1)
        self.channel = nn.Sequential(nn.Linear(width, narrow), nn.ReLU(inplace=True), nn.Linear(narrow, width))
        self.spatial = nn.Conv2d(2, 1, window, padding=window // 2, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, D, H, W) -> (B, D, H, W)."""
        channel = self.channel(maps.mean((2, 3))) + self.channel(maps.amax((2, 3)))
        maps = maps * torch.sigmoid(channel)[:, :, None, None]
        summary = torch.cat([maps.mean(1, keepdim=True), maps.amax(1, keepdim=True)], dim=1)
        return maps * torch.sigmoid(self.spatial(summary))


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


class OwnLayers(nn.Module):
    """Another exchange behind one more layer that each member has to itself, 37,056 parameters at 64 channels.

    The paper's Table 2 counts about 185K parameters more than 5 plain ResNet-18 whatever the exchange; one such layer a
    member fits to the last printed digit. Inferred from the arithmetic, not described in the paper.
    """

    def __init__(self, exchange: WeightSharing | FeatureSharing | FeatureFusion, features: int, members: int) -> None:
        super().__init__()
        self.exchange = exchange
        self.shared_stem = exchange.shared_stem
        self.own = nn.ModuleList(_convolution(features, features, 3, bias=True) for _ in range(members))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M, or 1 for all, of (B, D, …) -> M of (B, D, …)."""
        everyone = list(features) * (len(self.own) // len(features))
        return self.exchange([on_maps(layer, h) for layer, h in zip(self.own, everyone, strict=True)])


def on_maps(module: nn.Module, features: Tensor) -> Tensor:
    """Apply a module for maps (B, D, H, W) to features of any form, vectors (B, D) being maps of one pixel."""
    if features.ndim != 2:
        return module(features)
    return module(features[:, :, None, None]).flatten(1)


def _convolution(inputs: int, outputs: int, size: int, *, bias: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


NAMES = ("none", "weight_sharing", "feature_sharing", "feature_fusion")


def build(name: str, split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """Make the exchange of that name between `members` networks that are split as `split` is.

    >>> build("feature_sharing", Split(nn.Conv2d(3, 8, 3), nn.Flatten()), members=5)
    FeatureSharing()
    """
    known_name("kind of exchange", name, NAMES)
    known_name("preset", preset, PRESETS)
    exchange: WeightSharing | FeatureSharing | FeatureFusion
    match name:
        case "none":
            return Separate()
        case "weight_sharing":
            exchange = WeightSharing(members)
        case "feature_sharing":
            exchange = FeatureSharing()
        case _:
            exchange = FeatureFusion(split.features, members, preset=preset)
    return OwnLayers(exchange, split.features, members) if preset == "paper_count" else exchange

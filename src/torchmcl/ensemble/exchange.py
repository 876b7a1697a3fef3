"""The exchange of features between members: features of the stems, M of (B, D, …) -> inputs of the bodies."""

from collections.abc import Callable, Sequence
from inspect import signature

from torch import Tensor, nn

from torchmcl._utils.registry import Registry
from torchmcl.ensemble.feature_fusion import PRESETS, FeatureFusion, apply_to_maps, convolution
from torchmcl.ensemble.feature_sharing import FeatureSharing
from torchmcl.errors import TorchmclError, UsageError, known_name
from torchmcl.structures.split import Split

__all__ = ["NAMES", "PRESETS", "build", "builder", "check_module", "names", "register"]
__all__ += ["FeatureFusion", "FeatureSharing", "MemberLayers", "NoExchange", "WeightSharing"]


class NoExchange(nn.Module):
    """Pass on the features of each member unchanged."""

    shared_stem = False

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M of (B, D, …)."""
        return list(features)


class WeightSharing(nn.Module):
    """Pass the features of one stem to all M members, as in vMCL and ONE.

    >>> import torch
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


Exchange = WeightSharing | FeatureSharing | FeatureFusion


class MemberLayers(nn.Module):
    """Apply an extra layer per member before an exchange; each layer has 37,056 parameters at 64 channels.

    For every exchange, table 2 of Kim et al. 2022 lists about 185K parameters more than 5 plain ResNet-18s have. One
    such layer per member matches this number to the last digit, so we infer that the paper uses these layers [I].
    """

    def __init__(self, exchange: Exchange, features: int, members: int) -> None:
        super().__init__()
        self.exchange = exchange
        self.shared_stem = exchange.shared_stem
        self.own = nn.ModuleList(convolution(features, features, 3, bias=True) for _ in range(members))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …), or 1 if the stem is shared -> M of (B, D, …)."""
        inputs = list(features) * (len(self.own) // len(features))
        return self.exchange([apply_to_maps(layer, h) for layer, h in zip(self.own, inputs, strict=True)])


def none(split: Split, members: int) -> nn.Module:
    """No exchange."""
    return NoExchange()


def weight_sharing(split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """All members use the features of one stem."""
    return _with_preset(WeightSharing(members), split, members, preset)


def feature_sharing(split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """Members add random parts of each other's features to their own."""
    return _with_preset(FeatureSharing(), split, members, preset)


def feature_fusion(split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """All members use the features of all members, fused with attention."""
    return _with_preset(FeatureFusion(split.features, members, preset=preset), split, members, preset)


def _with_preset(exchange: Exchange, split: Split, members: int, preset: str) -> nn.Module:
    return MemberLayers(exchange, split.features, members) if preset == "paper_count" else exchange


Builder = Callable[..., nn.Module]
_BUILDERS: Registry[Builder] = Registry("kind of exchange", (none, weight_sharing, feature_sharing, feature_fusion))
NAMES = ("none", "weight_sharing", "feature_sharing", "feature_fusion")  # the built-in exchanges


def names() -> tuple[str, ...]:
    """Return the names of all exchanges, including registered ones."""
    return _BUILDERS.names()


def builder(name: str) -> Builder:
    """Return the function that builds the exchange `name`; raise UsageError for an unknown name."""
    return _BUILDERS.find(name)


def register(exchange: Builder) -> Builder:
    """A decorator that registers an exchange under the name of its function.

    Args:
        exchange: a function `(split, members, *, preset="default") -> nn.Module`. `split` is one of the members, and
            `split.features` is the number of channels D at the cut. Omit `preset` if there are no presets. The module
            maps the features of the stems, M of (B, D, …), to a list of M tensors of the same shape, the inputs of the
            bodies. If its attribute `shared_stem` is True, all members share one stem, and the module receives a list
            of one tensor. Use `torchmcl.testing.check_exchange` to test the exchange

    Raises:
        UsageError: if another exchange has this name, or the name is "default"
    """
    if exchange.__name__ == "default":
        raise UsageError("The name 'default' is reserved for the exchange of the method. Rename the function.")
    return _BUILDERS.register(exchange)


def build(name: str, split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """Build an exchange by name.

    Args:
        name: one of `names()`
        split: one of the members, which all have the same number of channels at the cut
        members: the number of members M
        preset: the variant of the exchange, one of `PRESETS`, see `FeatureFusion` and `MemberLayers`

    Returns:
        A module that maps M of (B, D, …), or 1 if the stem is shared, to M of (B, D, …).

    Raises:
        UsageError: if the name or the preset is unknown, or the function that builds the exchange fails

    >>> build("feature_sharing", Split(nn.Conv2d(3, 8, 3), nn.Flatten()), members=5)
    FeatureSharing()
    """
    known_name("preset", preset, PRESETS)
    function, options = builder(name), {}
    if "preset" in signature(function).parameters:
        options = {"preset": preset}
    elif preset != "default" and name not in NAMES:
        raise UsageError(f"The exchange {name} has no presets. Omit preset={preset!r}.")
    try:
        return check_module(function(split, members, **options))
    except TorchmclError:
        raise
    except Exception as problem:  # raised by the user's function
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}".rstrip(".: ")
        raise UsageError(
            f"The function {name} failed to build an exchange between {members} members: {reason}. "
            "See torchmcl.ensemble.exchange.register."
        ) from problem


def check_module(exchange: nn.Module) -> nn.Module:
    """Return the exchange; raise UsageError unless it is a module with `shared_stem` (see `register`)."""
    if not isinstance(exchange, nn.Module) or not isinstance(getattr(exchange, "shared_stem", None), bool):
        raise UsageError(f"Expected an nn.Module with a boolean attribute shared_stem, got {type(exchange).__name__}.")
    return exchange

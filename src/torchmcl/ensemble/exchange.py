"""What members share low down: features (B, D, …) of each member's stem -> what each member's body goes on with."""

from collections.abc import Callable, Sequence
from inspect import signature

from torch import Tensor, nn

from torchmcl._utils.registry import Registry
from torchmcl.ensemble.feature_fusion import PRESETS, FeatureFusion, convolution, on_maps
from torchmcl.ensemble.feature_sharing import FeatureSharing
from torchmcl.errors import TorchmclError, UsageError, known_name
from torchmcl.structures.split import Split

__all__ = [
    "NAMES",
    "PRESETS",
    "FeatureFusion",
    "FeatureSharing",
    "OwnLayers",
    "Separate",
    "WeightSharing",
    "build",
    "builder",
    "check_module",
    "names",
    "register",
]


class Separate(nn.Module):
    """Nothing is exchanged."""

    shared_stem = False

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, D, …) -> M of (B, D, …)."""
        return list(features)


class WeightSharing(nn.Module):
    """All members read the same features: one stem for everyone (vMCL, ONE).

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


class OwnLayers(nn.Module):
    """Another exchange behind one more layer that each member has to itself, 37,056 parameters at 64 channels.

    The paper's Table 2 counts about 185K parameters more than 5 plain ResNet-18 whatever the exchange; one such layer a
    member fits to the last printed digit. Inferred from the arithmetic, not described in the paper.
    """

    def __init__(self, exchange: WeightSharing | FeatureSharing | FeatureFusion, features: int, members: int) -> None:
        super().__init__()
        self.exchange = exchange
        self.shared_stem = exchange.shared_stem
        self.own = nn.ModuleList(convolution(features, features, 3, bias=True) for _ in range(members))

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """M, or 1 for all, of (B, D, …) -> M of (B, D, …)."""
        everyone = list(features) * (len(self.own) // len(features))
        return self.exchange([on_maps(layer, h) for layer, h in zip(self.own, everyone, strict=True)])


def none(split: Split, members: int) -> nn.Module:
    """Nothing is exchanged."""
    return Separate()


def weight_sharing(split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """All members read the features of one stem."""
    return _own_layers(WeightSharing(members), split, members, preset)


def feature_sharing(split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """Members add random parts of each other's features."""
    return _own_layers(FeatureSharing(), split, members, preset)


def feature_fusion(split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """All members go on with one attended fusion of everyone's features."""
    return _own_layers(FeatureFusion(split.features, members, preset=preset), split, members, preset)


def _own_layers(
    exchange: WeightSharing | FeatureSharing | FeatureFusion, split: Split, members: int, preset: str
) -> nn.Module:
    return OwnLayers(exchange, split.features, members) if preset == "paper_count" else exchange


Builder = Callable[..., nn.Module]
_BUILDERS: Registry[Builder] = Registry("kind of exchange", (none, weight_sharing, feature_sharing, feature_fusion))
NAMES = ("none", "weight_sharing", "feature_sharing", "feature_fusion")  # of this package's own


def names() -> tuple[str, ...]:
    """The names of all exchanges, registered ones included."""
    return _BUILDERS.names()


def builder(name: str) -> Builder:
    """The function that builds the exchange of that name."""
    return _BUILDERS.find(name)


def register(exchange: Builder) -> Builder:
    """Register an exchange of your own under the function's name, `(split, members, *, preset="default") -> nn.Module`.

    `split` is one of the members, and `split.features` the number of channels D at the cut; leave `preset` out if there
    are no presets. The module turns the features of the members' stems, M tensors (B, D, …), into what the members'
    bodies go on with, a list of M tensors of the same shape. Its attribute `shared_stem` says whether all members have
    one stem in common; if it is True, the module is given a list of one tensor. `torchmcl.testing.check_exchange`
    checks all of this.
    """
    if exchange.__name__ == "default":
        raise UsageError("Expected another name than 'default', which stands for the method's own exchange.")
    return _BUILDERS.register(exchange)


def build(name: str, split: Split, members: int, *, preset: str = "default") -> nn.Module:
    """Make the exchange of that name between `members` networks that are split as `split` is.

    >>> build("feature_sharing", Split(nn.Conv2d(3, 8, 3), nn.Flatten()), members=5)
    FeatureSharing()
    """
    known_name("preset", preset, PRESETS)
    make, options = builder(name), {}
    if "preset" in signature(make).parameters:
        options = {"preset": preset}
    elif preset != "default" and name not in NAMES:
        raise UsageError(f"Expected no preset for the exchange {name}, which has none, got {preset!r}. Leave it out.")
    try:
        return check_module(make(split, members, **options))
    except TorchmclError:
        raise
    except Exception as problem:  # of the caller's function
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}".rstrip(".: ")
        raise UsageError(
            f"Expected the function {name} to build an exchange between {members} members, got {reason}. "
            "See ensemble.exchange.register."
        ) from problem


def check_module(exchange: nn.Module) -> nn.Module:
    """Raises UsageError for what is not a module with `shared_stem`, see `register`."""
    if not isinstance(exchange, nn.Module) or not isinstance(getattr(exchange, "shared_stem", None), bool):
        raise UsageError(
            "Expected an exchange to be an nn.Module with shared_stem, which is True or False, "
            f"got {type(exchange).__name__}. Set it in the class."
        )
    return exchange

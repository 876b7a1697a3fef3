import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmcl import exchange as exchanges
from torchmcl import networks
from torchmcl._utils.randomness import isolated
from torchmcl.crew import Each, Stacked, crew
from torchmcl.errors import UsageError
from torchmcl.exchange import PooledNorm, on_maps
from torchmcl.methods import Method
from torchmcl.methods import build as build_method
from torchmcl.opinions import Opinions
from torchmcl.options import right_types
from torchmcl.room import fits
from torchmcl.seeds import seed_of
from torchmcl.split import Split, at_input_size

__all__ = ["Ensemble", "Gate", "Opinions", "Split"]

Network = str | Callable[[int], nn.Module]


class Ensemble(nn.Module):
    """M members that read the same input, exchange low-level features, and say what they think.

    Members are `Split` networks or plain modules; a plain module has nothing to exchange. `exchange` turns the features
    of all stems into what each body goes on with; `gate` weighs the members by those features. The modules that are
    passed are the ones that learn.

    >>> ensemble = Ensemble.build("amcl", "simple_cnn", members=3, classes=10, width=8, preset="light")
    >>> ensemble(torch.randn(2, 3, 32, 32)).logits.shape
    torch.Size([3, 2, 11])
    """

    def __init__(
        self, members: Sequence[nn.Module], *, exchange: nn.Module | None = None, gate: nn.Module | None = None
    ) -> None:
        super().__init__()
        _never_copies(members)
        self.exchange = exchange or exchanges.Separate()
        self.gate = gate
        stems = [member.stem if isinstance(member, Split) else nn.Identity() for member in members]
        self.stems: Each | Stacked = Each(stems[:1] if self.exchange.shared_stem else stems)
        self.bodies: Each | Stacked = Each(member.body if isinstance(member, Split) else member for member in members)

    @classmethod
    def build(
        cls,
        method: str | Method = "amcl",
        network: Network | Sequence[Network] = "simple_cnn",
        *,
        members: int | None = None,
        classes: int | None = None,
        exchange: str = "default",
        preset: str = "default",
        cut: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> "Ensemble":
        """Make an ensemble for a method, 5 members and 10 classes unless the method or the call says otherwise.

        `network` is a name in `networks.names()`, built with `options` (width, channels, …); or a callable that is
        given the number of outputs and returns a `Split`, an `nn.Sequential` to be split behind its first `cut` layers,
        or any other module; or one of these for each member. Each member starts from a seed of its own. The weights of
        equal chains of linear layers are moved into one parameter per layer, which trains small members faster; to keep
        the modules themselves, pass them to `Ensemble`.
        """
        right_types(locals(), cls.build)
        if isinstance(method, str):
            method = build_method(method, 5 if members is None else members, 10 if classes is None else classes)
        if members not in (None, method.members) or classes not in (None, method.classes):
            raise UsageError(
                f"Expected {method.members} members and {method.classes} classes, as the method was built, "
                f"got {members} and {classes}."
            )
        several = [network] * method.members if isinstance(network, str) or callable(network) else list(network)
        if len(several) != method.members:
            raise UsageError(f"Expected one network for all or {method.members}, one a member, got {len(several)}.")
        built = []
        for m, one in enumerate(several):
            with _seeded(seed, m):
                built.append(_member(one, method, cut, options))
            if m == 0:
                weights = sum(weight.nbytes for weight in built[0].parameters() if not is_lazy(weight))
                fits(f"{method.members} members", method.members * weights)
        with _seeded(seed, method.members):
            between = _exchange(exchange, preset, method, built)
            gate = Gate(method.gate, _gate_features(built, method), method.members) if method.gate else None
        ensemble = cls(built, exchange=between, gate=gate)
        ensemble.stems, ensemble.bodies = crew(ensemble.stems), crew(ensemble.bodies)  # type: ignore[arg-type]
        return ensemble

    def forward(self, x: Tensor) -> Opinions:
        """(B, …) -> opinions with logits (M, B, C, …)."""
        if self.gate is None and isinstance(self.exchange, exchanges.Separate) and isinstance(self.stems, Each):
            # One member after another: features that nobody else waits for are still in the cache, and soon free.
            return Opinions(torch.stack([self.say(m, stem(x), x) for m, stem in enumerate(self.stems)]))
        features = self.share(x)
        logits = [at_input_size(said, x) for said in self.bodies(features)]
        return Opinions(torch.stack(logits), None if self.gate is None else self.gate(features))

    def share(self, x: Tensor) -> list[Tensor]:
        """(B, …) -> what each member goes on with after the exchange, M of (B, D, …)."""
        return self.exchange(self.stems([x] * len(self.stems)))

    def say(self, member: int, features: Tensor, x: Tensor) -> Tensor:
        """What a member makes of its features (B, D, …) of x -> logits (B, C, …)."""
        return at_input_size(self.bodies[member](features), x)


class Gate(nn.Module):
    """Weights of the members (M, B), summing to 1, from what they exchanged (of features that differ, their mean).

    `conv` is vMCL's choice network, reconstructed: convolution, pooling, linear, softmax. `pool` is ONE's: pooling,
    linear, batch normalisation, ReLU, softmax.

    >>> Gate("pool", features=8, members=3)([torch.zeros(2, 8, 4, 4)] * 3)[:, 0]
    tensor([0.3333, 0.3333, 0.3333], grad_fn=<SelectBackward0>)
    """

    def __init__(self, kind: str, features: int, members: int) -> None:
        super().__init__()
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, members)]
        if kind == "conv":
            conv = nn.Conv2d(features, features, 3, padding=1, bias=False)
            layers = [conv, nn.BatchNorm2d(features), nn.ReLU(inplace=True), *pool]
        elif kind == "pool":
            layers = [*pool, PooledNorm(members), nn.ReLU(inplace=True)]
        else:
            raise UsageError(f"Expected a gate 'conv' or 'pool', got {kind!r}.")
        self.layers = nn.Sequential(*layers, nn.Softmax(1))

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """M of (B, D, …) -> (M, B)."""
        same = all(h is features[0] for h in features)
        return on_maps(self.layers, features[0] if same else torch.stack(list(features)).mean(0)).T


def _member(network: Network, method: Method, cut: int | None, options: dict[str, Any]) -> nn.Module:
    if isinstance(network, str):
        return networks.build(network, method.outputs, cut=method.cut, **options)
    if options:
        raise UsageError(
            f"Expected options ({', '.join(options)}) for a network given by name only; "
            "bind them yourself: functools.partial(network, …)."
        )
    module = network(method.outputs)
    if not isinstance(module, nn.Module):
        raise UsageError(f"Expected the network callable to return an nn.Module, got {type(module).__name__}.")
    if cut is None or isinstance(module, Split):
        return module
    if not isinstance(module, nn.Sequential):
        raise UsageError(f"Expected an nn.Sequential to cut at {cut}, got {type(module).__name__}. Return a Split.")
    return Split.at(list(module), cut)


def _exchange(name: str, preset: str, method: Method, members: Sequence[nn.Module]) -> nn.Module | None:
    wanted = method.exchange if name == "default" else name
    if wanted == "none":
        return None
    splits = [member for member in members if isinstance(member, Split)]
    if len(splits) == len(members):
        if len(widths := {split.features for split in splits}) > 1:
            raise UsageError(
                f"Expected members with equally many features at the cut for exchange {wanted!r}, "
                f"got {sorted(widths)}. Say exchange='none'."
            )
        return exchanges.build(wanted, splits[0], len(members), preset=preset)
    how = "Return a Split(stem, body), or an nn.Sequential and pass cut=…"
    if name != "default":
        raise UsageError(f"Expected networks that can be split for exchange {wanted!r}, got plain modules. {how}.")
    warnings.warn(
        f"{method.name} exchanges features by {wanted} unless told otherwise, and plain modules have none to give: "
        f"building without. {how}; or say exchange='none'.",
        stacklevel=3,
    )
    return None


def _gate_features(members: Sequence[nn.Module], method: Method) -> int:
    if not isinstance(members[0], Split):
        raise UsageError(
            f"Expected networks that can be split: {method.name}'s gate looks at their features. "
            "Return a Split(stem, body), or an nn.Sequential and pass cut=…."
        )
    return members[0].features


@contextmanager
def _seeded(seed: int, part: int) -> Iterator[None]:
    """A seed of its own for each part, the same whatever the number of parts; the caller's generator is left alone."""
    with isolated():
        torch.manual_seed(seed_of(seed, part))
        yield


def _never_copies(members: Sequence[nn.Module]) -> None:
    """Copies would stay copies: the first of equals takes every example, and the rest learn the same."""
    seen: dict[tuple[float, ...], int] = {}
    for m, member in enumerate(members):
        print_of = tuple(float(p.detach().double().sum()) for p in member.parameters())
        if print_of and (twin := seen.setdefault(print_of, m)) != m:
            raise UsageError(
                f"Expected members that start from different weights, got the same in members {twin} and {m}. "
                "Let the network callable make a new, randomly initialised module each time."
            )

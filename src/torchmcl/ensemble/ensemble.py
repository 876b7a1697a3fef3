import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from reprlib import repr as shown
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmcl import networks
from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.randomness import isolated, seed_of
from torchmcl._utils.validation import validate_types
from torchmcl.ensemble import exchange as exchanges
from torchmcl.ensemble.gate import Gate
from torchmcl.ensemble.members import BatchedMembers, MemberList, as_members
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.methods import Method
from torchmcl.methods import build as build_method
from torchmcl.objectives.dataset_pass import evaluating
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.split import Split, at_input_size

__all__ = ["Ensemble", "EnsembleOutput", "Gate", "Split"]

Network = str | nn.Module | Callable[[int], nn.Module]


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
        self.outputs: int | None = None  # of each member, where it is known
        self.auxiliary = False  # whether one of them is the auxiliary class
        self.exchange = exchanges.check_module(exchange or exchanges.Separate())
        self.gate = gate
        stems = [member.stem if isinstance(member, Split) else nn.Identity() for member in members]
        self.stems: MemberList | BatchedMembers = MemberList(stems[:1] if self.exchange.shared_stem else stems)
        self.bodies: MemberList | BatchedMembers = MemberList(
            member.body if isinstance(member, Split) else member for member in members
        )

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
        or any other module; or a module, which is copied with its weights; or a list with one of these per member. Each
        member starts from a seed of its own. The weights of equal chains of linear layers are moved into one parameter
        per layer, which trains small members faster; to keep the modules themselves, see `from_modules`, which also
        says what is done to modules. Where a module is given, the default is to exchange nothing.
        """
        validate_types(locals(), cls.build)
        listed = None if isinstance(network, str | nn.Module) or callable(network) else list(network)
        if isinstance(method, str):
            count = len(listed) if listed and members is None else members
            method = build_method(method, 5 if count is None else count, 10 if classes is None else classes)
        if members not in (None, method.members) or classes not in (None, method.classes):
            raise UsageError(
                f"Expected {method.members} members and {method.classes} classes, as the method was built, "
                f"got {members} and {classes}."
            )
        several = [cast(Network, network)] * method.members if listed is None else listed
        if len(several) != method.members:
            raise UsageError(f"Expected one network for all or {method.members}, one a member, got {len(several)}.")
        built = []
        for m, one in enumerate(several):
            with _seeded(seed, m):
                built.append(_member(one, method, cut, options))
            if m == 0:
                weights = sum(weight.nbytes for weight in built[0].parameters() if not is_lazy(weight))
                check_memory(f"{method.members} members", method.members * weights)
        if exchange == "default" and any(isinstance(one, nn.Module) for one in several):
            exchange = "none"  # what they have learned they learned without
        ensemble = cls._joined(built, method, exchange, preset, seed)
        ensemble.stems, ensemble.bodies = as_members(ensemble.stems), as_members(ensemble.bodies)  # type: ignore[arg-type]
        return ensemble

    @classmethod
    def from_modules(
        cls,
        modules: Iterable[nn.Module],
        *,
        method: Method | None = None,
        exchange: str = "none",
        preset: str = "default",
        seed: int = 0,
    ) -> "Ensemble":
        """Make an ensemble of modules, of different architectures or trained already, which are the ones that learn.

        All have the same number of outputs: that of the method, where one is given. If the method has an auxiliary
        class and the last layer of a module is an `nn.Linear` or `nn.Conv2d` with one output for each class, it gets
        one more in place: its weights are kept, and those of the auxiliary output are zero. Create an optimiser after
        that. Modules that exchange features are `Split`s; a seed sets the weights of the exchange.

        >>> large, small = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)), nn.Linear(4, 3)
        >>> ensemble = Ensemble.from_modules([large, small], method=build_method("amcl", members=2, classes=3))
        >>> ensemble(torch.randn(5, 4)).logits.shape, small
        (torch.Size([2, 5, 4]), Linear(in_features=4, out_features=4, bias=True))
        """
        validate_types(locals(), cls.from_modules)
        modules = list(modules)
        if not modules or not all(isinstance(one, nn.Module) for one in modules):
            raise UsageError(f"Expected modules of torch.nn, got {shown(modules)}. Networks by name: Ensemble.build.")
        if method is None:
            if exchange != "none":
                raise UsageError(f"Expected a method for exchange {exchange!r}, got none. Pass method=….")
            return cls(modules)
        if len(modules) != method.members:
            raise UsageError(f"Expected {method.members} modules, one per member of the method, got {len(modules)}.")
        with widened(modules, method):
            return cls._joined(modules, method, exchange, preset, seed)

    @classmethod
    def _joined(cls, members: Sequence[nn.Module], method: Method, exchange: str, preset: str, seed: int) -> "Ensemble":
        with _seeded(seed, method.members):
            between = _exchange(exchange, preset, method, members)
            gate = Gate(method.gate, _gate_features(members, method), method.members) if method.gate else None
        ensemble = cls(members, exchange=between, gate=gate)
        ensemble.outputs, ensemble.auxiliary = method.outputs, method.auxiliary
        return ensemble

    def forward(self, x: Tensor) -> EnsembleOutput:
        """(B, …) -> opinions with logits (M, B, C, …)."""
        if self.gate is None and isinstance(self.exchange, exchanges.Separate) and isinstance(self.stems, MemberList):
            # One member after another: features that nobody else waits for are still in the cache, and soon free.
            return EnsembleOutput(
                self.stacked([self.forward_member(m, stem(x), x) for m, stem in enumerate(self.stems)])
            )
        features = self.share(x)
        logits = [at_input_size(said, x) for said in self.bodies(features)]
        return EnsembleOutput(self.stacked(logits), None if self.gate is None else self.gate(features))

    def share(self, x: Tensor) -> list[Tensor]:
        """(B, …) -> what each member goes on with after the exchange, M of (B, D, …)."""
        features = self.stems([x] * len(self.stems))
        shapes = [tuple(h.shape) if isinstance(h, Tensor) else None for h in features]  # before it can change them
        return _checked(self.exchange(features), self.exchange, members=len(self.bodies), shapes=shapes)

    def forward_member(self, member: int, features: Tensor, x: Tensor) -> Tensor:
        """What a member makes of its features (B, D, …) of x -> logits (B, C, …)."""
        return at_input_size(self.bodies[member](features), x)

    def stacked(self, logits: Sequence[Tensor]) -> Tensor:
        """M of (B, C, …) -> (M, B, C, …); raises UsageError where members differ in their outputs."""
        outputs, axes = self.outputs or logits[0].shape[1], logits[0].ndim
        for m, said in enumerate(logits):
            if said.shape[1] != outputs or said.ndim != axes:
                raise UsageError(
                    f"Expected {outputs} outputs of each member (the classes, and the auxiliary class of methods that "
                    f"have one), got logits {tuple(said.shape)} of member {m}. Change its last layer."
                )
        return torch.stack(list(logits))

    @torch.no_grad()
    def try_out(self, x: Tensor) -> Tensor:
        """Logits (M, B, C, …) in evaluation mode; raises UsageError where a network cannot take x, and says which."""
        member: int | None = 0
        try:
            with isolated(), evaluating(self):
                for m, stem in enumerate(self.stems if isinstance(self.stems, MemberList) else ()):
                    member = m
                    stem(x)
                member = None
                features = self.share(x)
                if self.gate is not None:
                    self.gate(features)
                logits = []
                for member in range(len(self.bodies)):
                    logits.append(self.forward_member(member, features[member], x))
            return self.stacked(logits)
        except TorchmclError:
            raise
        except Exception as problem:  # of the caller's modules
            raise self._cannot_take(x, member, problem) from problem

    def _cannot_take(self, x: Tensor, member: int | None, problem: Exception) -> UsageError:
        other = {str(p.dtype)[6:] for p in self.parameters() if p.is_floating_point() and p.dtype != x.dtype}
        whose = "between the members" if member is None else f"in member {member}"
        reason = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
        if other:
            dtype = str(x.dtype)[6:]
            advice = f"Weights are {', '.join(sorted(other))}, examples {dtype}: convert the networks to torch.{dtype}."
        else:
            advice = "Change the network or the examples" + self.auxiliary * (
                f", or give the network its {self.outputs} outputs if its head is not the last layer that it registers"
            )
            advice += "."
        return UsageError(
            f"Expected networks that take examples of shape {tuple(x.shape[1:])}, got {whose}: {reason}. {advice}"
        )


def _member(network: Network, method: Method, cut: int | None, options: dict[str, Any]) -> nn.Module:
    if isinstance(network, str):
        return networks.build(network, method.outputs, cut=method.cut, **options)
    if options:
        raise UsageError(
            f"Expected options ({', '.join(options)}) for a network given by name only; "
            "bind them yourself: functools.partial(network, …)."
        )
    if isinstance(network, nn.Module):
        with widened([module := _copy(network)], method):
            pass
    else:
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
        stacklevel=4,
    )
    return None


def _gate_features(members: Sequence[nn.Module], method: Method) -> int:
    widths = {member.features if isinstance(member, Split) else None for member in members}
    if len(widths) > 1 or None in widths:
        raise UsageError(
            f"Expected networks that can be split, of equal width: {method.name}'s gate looks at their features. "
            "Return a Split(stem, body), or an nn.Sequential and pass cut=…."
        )
    return cast(int, widths.pop())


def _copy(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except Exception as problem:  # such as a weight that an old hook computes
        reason = " ".join(str(problem).split()).rstrip(".")
        raise UsageError(
            f"Expected modules that can be copied, got {type(network).__name__}: {reason}. "
            "Pass a callable that makes the network."
        ) from problem


@contextmanager
def widened(modules: Iterable[nn.Module], method: Method) -> Iterator[None]:
    """Give the last layer of each module an auxiliary output, in place, where it has the method's classes alone.

    A module that does not end with such a layer is left as it is; if its outputs are too few, `stacked` says so. If
    the block raises, all modules are as before.
    """
    narrow = [one for one in modules if isinstance(one, nn.Module)] if method.auxiliary else []  # others are refused
    layers = [layer for module in narrow if (layer := _head(module, method.classes)) is not None]
    before = {layer: dict(layer.named_parameters()) for layer in layers}
    try:
        for layer, weights in before.items():
            wider = {name: torch.cat([old.detach(), old.new_zeros(1, *old.shape[1:])]) for name, old in weights.items()}
            new = {name: nn.Parameter(wider[name], requires_grad=old.requires_grad) for name, old in weights.items()}
            _set_outputs(layer, method.outputs, new)
        yield
    except BaseException:
        for layer, weights in before.items():
            _set_outputs(layer, method.classes, weights)
        raise


def _head(module: nn.Module, classes: int) -> nn.Module | None:
    """The last layer that has weights or buffers, if it is a plain one with an output for each class."""
    layers = [part for part in module.modules() if {**part._parameters, **part._buffers}]
    last: Any = layers[-1] if layers else None
    if type(last) not in (nn.Linear, nn.Conv2d) or last._buffers or getattr(last, "groups", 1) > 1:
        return None
    plain = {name for name, _ in last.named_parameters()} in ({"weight"}, {"weight", "bias"})
    return last if plain and not is_lazy(last.weight) and len(last.weight) == classes else None


def _set_outputs(layer: nn.Module, outputs: int, weights: dict[str, nn.Parameter]) -> None:
    for name, weight in weights.items():
        setattr(layer, name, weight)
    setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", outputs)


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
        if any(map(is_lazy, member.parameters())):
            continue  # not drawn yet
        print_of = tuple(float(p.detach().double().sum()) for p in member.parameters())
        if print_of and (twin := seen.setdefault(print_of, m)) != m:
            raise UsageError(
                f"Expected members that start from different weights, got the same in members {twin} and {m}. "
                "Let the network callable make a new, randomly initialised module each time."
            )


def _checked(
    features: Any, exchange: nn.Module, *, members: int, shapes: Sequence[tuple[int, ...] | None]
) -> list[Tensor]:
    """What an exchange returned, as a list; raises UsageError unless it is one tensor per member, of the given shape.

    `shapes` are those of what it was given, M of them, or 1 where all members have one stem.
    """
    found = list(features) if isinstance(features, list | tuple | Tensor) else [features]
    wanted = list(shapes) * (members if len(shapes) == 1 else 1)
    got = [tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__ for h in found]
    if got == wanted:
        return found
    raise UsageError(
        f"Expected {type(exchange).__name__} to return a list of {members} tensors (B, D, …), one per member, of the "
        f"shape that it was given, {shapes[0]}, got {len(found)}: {shown(got)}. "
        "See torchmcl.ensemble.exchange.register."
    )

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from reprlib import repr as shown
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchmcl import networks
from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.randomness import isolated, seed_of
from torchmcl._utils.validation import validate_types
from torchmcl.ensemble import exchange as exchanges
from torchmcl.ensemble.gate import Gate
from torchmcl.ensemble.members import BatchedMembers, MemberList, as_members, complete
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.methods import Method
from torchmcl.methods import build as build_method
from torchmcl.networks.backbone import Frozen
from torchmcl.objectives.dataset_pass import evaluating
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.split import Split, at_input_size

Network = str | nn.Module | Callable[[int], nn.Module]
HOW_TO_SPLIT = "Use Split(stem, body) networks, or pass an nn.Sequential and cut=… to Ensemble.build"


class Ensemble(nn.Module):
    """M members as one module: the stems' features pass through the exchange to the bodies, which return logits.

    Args:
        members: `Split` networks, or plain modules, which have no features to exchange; modules are not copied
        exchange: a module that maps the features of all stems to the inputs of the bodies, see `exchange.register`
        gate: a module that maps the inputs of the bodies, M of (B, D, …), to weights of the members, (M, B)

    Raises:
        UsageError: if two members have the same weights, or `exchange` is not a valid exchange

    >>> ensemble = Ensemble.build("amcl", "simple_cnn", members=3, classes=10, width=8, preset="light")
    >>> ensemble(torch.randn(2, 3, 32, 32)).logits.shape
    torch.Size([3, 2, 11])
    """

    def __init__(
        self, members: Sequence[nn.Module], *, exchange: nn.Module | None = None, gate: nn.Module | None = None
    ) -> None:
        super().__init__()
        _check_distinct(members)
        self.outputs: int | None = None  # the number of outputs per member, if known
        self.image_size: tuple[int, ...] | None = None  # set by `expect_features`
        self.auxiliary = False  # whether the last output is the auxiliary class
        self.whitening: nn.Module = nn.Identity()  # or `Whitening`, applied to the inputs of all members
        self.exchange = exchanges.check_module(exchange or exchanges.NoExchange())
        self.gate = gate
        splits = [member if isinstance(member, Split) else Split(nn.Identity(), member) for member in members]
        stems = [split.stem for split in splits]
        self.stems: MemberList | BatchedMembers = MemberList(stems[:1] if self.exchange.shared_stem else stems)
        self.bodies: MemberList | BatchedMembers = MemberList(split.body for split in splits)

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
    ) -> Self:
        """Build an ensemble for a method.

        Args:
            method: a method or its name
            network: a name in `networks.names()`; a function that takes the number of outputs and returns a module; a
                module, which is copied with its weights; or a list with one of these per member
            members: the number of members; by default, taken from the method or the list, otherwise 5
            classes: the number of classes; by default, taken from the method, otherwise 10
            exchange: a name in `exchange.names()`; "default" is the method's exchange, or "none" if modules are given
            preset: the variant of the exchange, one of `exchange.PRESETS`
            cut: the number of layers in the stem of a network that is an `nn.Sequential`
            seed: the seed of the initial weights, which are different for each member
            options: options of networks given by name, such as width and channels

        Returns:
            An ensemble. If all members are chains of the same linear layers, their weights are stacked in one
            parameter per layer, which is faster. Use `from_modules` to keep separate modules.

        Raises:
            UsageError: if an argument is unknown or does not match the method, or if the weights do not fit in memory
        """
        validate_types(locals(), cls.build)
        listed = None if isinstance(network, str | nn.Module) or callable(network) else list(network)
        if isinstance(method, str):
            count = len(listed) if listed and members is None else members
            method = build_method(method, 5 if count is None else count, 10 if classes is None else classes)
        if members not in (None, method.members) or classes not in (None, method.classes):
            given = f"members={members} and classes={classes}"
            raise UsageError(
                f"The method has {method.members} members and {method.classes} classes, not {given}. Omit both."
            )
        several = [cast(Network, network)] * method.members if listed is None else listed
        if len(several) != method.members:
            raise UsageError(f"Expected one network or {method.members} networks, one per member, got {len(several)}.")
        built: list[Any] = []
        for m, one in enumerate(several):
            with _seeded(seed, m):
                member = _build_member(one, method, cut, options)
            if isinstance(member, Split) and member.shared:
                if one != several[0] or isinstance(one, nn.Module):
                    raise UsageError("Members with networks of their own cannot share a trunk. Pass trunk='none'.")
                if built:
                    member.stem = built[0].stem  # at once, because a trunk can be large
            built.append(member)
            if m == 0:
                shared = member.stem if isinstance(member, Split) and member.shared else nn.Identity()
                weights, once = (_bytes(part) for part in (member, shared))
                check_memory(f"{method.members} members", method.members * (weights - once) + once)
        if exchange == "default" and any(isinstance(one, nn.Module) for one in several):
            exchange = "none"  # the modules may have been trained without an exchange
        ensemble = cls._assemble(built, method, exchange, preset, seed)
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
    ) -> Self:
        """Build an ensemble from trained or untrained modules of any architecture, without copying them.

        Args:
            modules: M modules with the same number of outputs; `Split` networks if they exchange features
            method: the method that the ensemble is for. If it has an auxiliary class and the last layer of a module is
                an `nn.Linear` or `nn.Conv2d` with one output per class, an output with zero weights is added to this
                layer in place. Create the optimiser after this call
            exchange: a name in `exchange.names()`; requires a method
            preset: the variant of the exchange, one of `exchange.PRESETS`
            seed: the seed of the initial weights of the exchange and the gate

        Raises:
            UsageError: if an argument is unknown or does not match the method

        >>> large, small = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3)), nn.Linear(4, 3)
        >>> ensemble = Ensemble.from_modules([large, small], method=build_method("amcl", members=2, classes=3))
        >>> ensemble(torch.randn(5, 4)).logits.shape, small
        (torch.Size([2, 5, 4]), Linear(in_features=4, out_features=4, bias=True))
        """
        validate_types(locals(), cls.from_modules)
        modules = list(modules)
        if not modules or not all(isinstance(one, nn.Module) for one in modules):
            raise UsageError(f"Expected torch.nn modules, got {shown(modules)}. For names, use Ensemble.build.")
        if method is None:
            if exchange != "none":
                raise UsageError(f"The exchange {exchange!r} requires a method. Pass method=….")
            return cls(modules)
        if len(modules) != method.members:
            raise UsageError(f"Expected {method.members} modules, one per member of the method, got {len(modules)}.")
        with auxiliary_outputs(modules, method):
            return cls._assemble(modules, method, exchange, preset, seed)

    @classmethod
    def _assemble(cls, members: Sequence[nn.Module], method: Method, exchange: str, preset: str, seed: int) -> Self:
        with _seeded(seed, method.members):
            module = _build_exchange(exchange, preset, method, members)
            kind = method.composition.gate
            if kind == "conv" and all(getattr(member, "pooled", False) for member in members):
                kind = "mlp"
            gate = Gate(kind, _gate_features(members, method), method.members) if kind else None
        ensemble = cls(members, exchange=module, gate=gate)
        ensemble.outputs, ensemble.auxiliary = method.outputs, method.auxiliary
        return ensemble

    @property
    def trunk(self) -> Frozen | None:
        """The part of the stem that all members share and that is not trained, or None."""
        stem = self.stems[0] if self.exchange.shared_stem and isinstance(self.stems, MemberList) else None
        first = next(iter(stem), stem) if isinstance(stem, nn.Sequential) else stem
        return first if isinstance(first, Frozen) else None

    def expect_features(self, size: Sequence[int] | None) -> None:
        """Expect the features of the `trunk` as input, for images of this (H, W); None expects images again."""
        if self.trunk is None:
            raise UsageError("The ensemble has no frozen trunk. Pass images.")
        self.trunk.bypassed = size is not None
        self.image_size = None if size is None else tuple(size)

    def _size(self, x: Tensor) -> Sequence[int]:
        return x.shape[2:] if self.image_size is None else self.image_size

    def forward(self, x: Tensor, parts: Sequence[Tensor | None] | None = None) -> EnsembleOutput:
        """Return the outputs of all members: (B, …) -> logits (M, B, C, …) and, if there is a gate, weights (M, B).

        `parts`, M of (B_m,), are the positions of the examples that pass through each member's body, and without an
        exchange also through its stem. By default, or if a part is None, all examples pass. The logits of other
        examples are 0. A member with an empty part is not computed.
        """
        x = self.whitening(x)
        if parts is not None:
            return self._forward_parts(x, parts)
        if self.gate is None and isinstance(self.exchange, exchanges.NoExchange) and isinstance(self.stems, MemberList):
            # Stem and body run for one member at a time, so that its features stay in the cache and are freed early.
            logits = [self.forward_member(m, stem(x), x) for m, stem in enumerate(self.stems)]
            return EnsembleOutput(self.stack_logits(logits))
        features = self.exchange_features(x)
        gate = None if self.gate is None else self.gate(features)
        if isinstance(self.bodies, BatchedMembers):
            stacked = self.bodies.stacked(features)
            if stacked.ndim == 3 and stacked.shape[2] == self.outputs:  # otherwise resized or refused below
                return EnsembleOutput(stacked, gate)
        logits = [at_input_size(output, self._size(x)) for output in self.bodies(features)]
        return EnsembleOutput(self.stack_logits(logits), gate)

    def _forward_parts(self, x: Tensor, parts: Sequence[Tensor | None]) -> EnsembleOutput:
        gate = None
        if self.gate is None and isinstance(self.exchange, exchanges.NoExchange):
            selected = [select_examples(x, part) for part in parts]
            if isinstance(self.stems, MemberList) and isinstance(self.bodies, MemberList):
                pairs = zip(self.stems, self.bodies, selected, strict=True)
                outputs = complete([body(stem(part)) if len(part) else None for stem, body, part in pairs])
            else:
                outputs = self.bodies.separately(self.stems.separately(selected))
        else:
            features = self.exchange_features(x)
            gate = None if self.gate is None else self.gate(features)
            outputs = self.bodies.separately(
                [select_examples(h, part) for h, part in zip(features, parts, strict=True)]
            )
        sizes = [at_input_size(output, self._size(x)) if len(output) else output for output in outputs]
        sizes = complete([output if len(output) else None for output in sizes])
        logits = [restore_examples(output, part, len(x)) for output, part in zip(sizes, parts, strict=True)]
        return EnsembleOutput(self.stack_logits(logits), gate)

    def exchange_features(self, x: Tensor) -> list[Tensor]:
        """Return the inputs of the bodies, the features after the exchange: whitened (B, …) -> M of (B, D, …)."""
        features, members = self.stems([x] * len(self.stems)), len(self.bodies)
        # The exchange may modify the list of features, so their shapes are stored first.
        shapes = [tuple(h.shape) if isinstance(h, Tensor) else None for h in features]
        exchanged = self.exchange(features)
        exchanged = list(exchanged) if isinstance(exchanged, list | tuple | Tensor) else [exchanged]
        actual = [tuple(h.shape) if isinstance(h, Tensor) else type(h).__name__ for h in exchanged]
        if actual != (shapes if len(shapes) > 1 else shapes * members):  # one tensor if all members share a stem
            raise UsageError(
                f"Expected {type(self.exchange).__name__} to return a list of {members} tensors (B, D, …) of shape "
                f"{shapes[0]}, got {len(actual)}: {shown(actual)}. See torchmcl.ensemble.exchange.register."
            )
        return exchanged

    def features(self, x: Tensor) -> Tensor:
        """Return features of examples (B, …) -> (B, D): the frozen trunk's, or the inputs of all last layers together.

        Features with pixels are averaged over them.

        >>> Ensemble.build("ie", "mlp", members=2, classes=3, width=8, inputs=4).features(torch.randn(5, 4)).shape
        torch.Size([5, 16])
        """
        x = self.whitening(x)
        found = [self.trunk(x)] if self.trunk is not None else self.bodies.last_inputs(self.exchange_features(x))
        return torch.cat([part.flatten(2).mean(2) if part.ndim > 2 else part for part in found], dim=1)

    def forward_member(self, member: int, features: Tensor, x: Tensor) -> Tensor:
        """Return the logits (B, C, …) of one member from its features (B, D, …) after the exchange; x is the input."""
        return at_input_size(self.bodies[member](features), self._size(x))

    def stack_logits(self, logits: Sequence[Tensor]) -> Tensor:
        """Stack logits, M of (B, C, …) -> (M, B, C, …); raise UsageError if a member has a wrong number of outputs."""
        outputs, axes = self.outputs or logits[0].shape[1], logits[0].ndim
        for m, output in enumerate(logits):
            if output.shape[1] != outputs or output.ndim != axes:
                expected = f"{outputs} outputs per member (classes, plus the auxiliary class if the method has one)"
                actual = f"logits {tuple(output.shape)} from member {m}"
                raise UsageError(f"Expected {expected}, got {actual}. Change its last layer.")
        return torch.stack(list(logits))

    @torch.no_grad()
    def dry_run(self, x: Tensor) -> Tensor:
        """Return the logits (M, B, C, …) in evaluation mode; if a member fails, raise UsageError with its index."""
        part = "The ensemble"
        try:
            with isolated(), evaluating(self):
                x = self.whitening(x)
                for m, stem in enumerate(self.stems if isinstance(self.stems, MemberList) else ()):
                    part = f"Member {m}"
                    stem(x)
                part = "The ensemble"
                features = self.exchange_features(x)
                if self.gate is not None:
                    self.gate(features)
                logits = []
                for m, h in enumerate(features):
                    part = f"Member {m}"
                    logits.append(self.forward_member(m, h, x))
            return self.stack_logits(logits)
        except TorchmclError:
            raise
        except Exception as problem:  # raised by the user's module
            raise UsageError(
                f"{part} failed on examples of shape {tuple(x.shape[1:])}: {_one_line(problem)}. {self._advice(x)}."
            ) from problem

    def _advice(self, x: Tensor) -> str:
        dtype = str(x.dtype)[6:]
        others = sorted({str(p.dtype)[6:] for p in self.parameters() if p.is_floating_point() and p.dtype != x.dtype})
        if others:
            types = f"The weights are {', '.join(others)}, but the examples are {dtype}"
            return f"{types}. Convert the networks to torch.{dtype}"
        head = f", or give the network {self.outputs} outputs if its head is not the last layer that it registers"
        return "Change the network or the examples" + head * self.auxiliary


def select_examples(x: Tensor, part: Tensor | None) -> Tensor:
    """Return the examples at the positions `part` (B_m,), or all if it is None: (B, …) -> (B_m, …).

    >>> select_examples(torch.arange(4.0), torch.tensor([0, 3]))
    tensor([0., 3.])
    """
    if part is None:
        return x
    if x.ndim == 4:  # keeps the memory format channels_last; x[part] does too, but takes ten times as long
        return x.movedim(1, -1).index_select(0, part).movedim(-1, 1)
    return x.index_select(0, part)


def restore_examples(logits: Tensor, part: Tensor | None, examples: int) -> Tensor:
    """Return the logits of all examples, which are 0 outside `part` (B_m,): (B_m, C, …) -> (B, C, …)."""
    if part is None:
        return logits
    return logits.new_zeros(examples, *logits.shape[1:]).index_copy(0, part, logits)


def _bytes(module: nn.Module) -> int:
    return sum(weight.nbytes for weight in module.parameters() if not is_lazy(weight))


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split()).rstrip(".") or type(problem).__name__


def _build_member(network: Network, method: Method, cut: int | None, options: dict[str, Any]) -> nn.Module:
    if isinstance(network, str):
        return networks.build(network, method.outputs, cut=method.composition.cut, **options)
    if options:
        names = ", ".join(options)
        raise UsageError(f"Options ({names}) require a network given by name. Bind options with functools.partial.")
    if isinstance(network, nn.Module):
        with auxiliary_outputs([module := _copy(network)], method):
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


def _build_exchange(name: str, preset: str, method: Method, members: Sequence[nn.Module]) -> nn.Module | None:
    splits = [member for member in members if isinstance(member, Split)]
    kind = method.exchange if name == "default" else name
    if splits and all(split.shared for split in splits):
        if name not in ("default", "weight_sharing"):
            raise UsageError(f"Networks with a shared trunk exclude exchange={name!r}. Build them with trunk='none'.")
        kind = "weight_sharing"
    if kind == "none":
        return None
    if len(splits) == len(members):
        if len(widths := {split.features for split in splits}) > 1:
            actual = f"{sorted(widths)}. Pass exchange='none'"
            raise UsageError(f"The exchange {kind!r} requires equal numbers of features at the cut, got {actual}.")
        return exchanges.build(kind, splits[0], len(members), preset=preset)
    if name != "default":
        raise UsageError(f"The exchange {kind!r} requires split networks, got plain modules. {HOW_TO_SPLIT}.")
    warnings.warn(
        f"{method.name} exchanges features by {kind}, but plain modules have no features to exchange. The ensemble is "
        f"built without an exchange. {HOW_TO_SPLIT}. To hide this warning, pass exchange='none'.",
        stacklevel=4,
    )
    return None


def _gate_features(members: Sequence[nn.Module], method: Method) -> int:
    widths = {member.features if isinstance(member, Split) else None for member in members}
    if len(widths) > 1 or None in widths:
        gate = f"The gate of {method.name}"
        raise UsageError(f"{gate} requires split networks with the same number of features at the cut. {HOW_TO_SPLIT}.")
    return cast(int, widths.pop())


def _copy(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except Exception as problem:  # for example, because a hook computes a weight
        name, reason = type(network).__name__, _one_line(problem)
        raise UsageError(f"Cannot copy {name}: {reason}. Pass a function that builds the network.") from problem


@contextmanager
def auxiliary_outputs(modules: Iterable[nn.Module], method: Method) -> Iterator[None]:
    """Add an auxiliary output, in place, to last layers with one output per class; undo the change if the block raises.

    Other last layers are not changed. `Ensemble.stack_logits` raises UsageError if their number of outputs is wrong.
    """
    heads = [_head(one, method.classes) for one in modules if method.auxiliary and isinstance(one, nn.Module)]
    layers = [layer for layer in heads if layer is not None]
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
    """Return the last layer with weights or buffers if it is a plain Linear or Conv2d with one output per class."""
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
    """Seed the generators for one part, independently of the number of parts, and restore them afterwards."""
    with isolated():
        torch.manual_seed(seed_of(seed, part))
        yield


def _check_distinct(members: Sequence[nn.Module]) -> None:
    # If all members were identical, the first one would take every example.
    seen: dict[tuple[float, ...], int] = {}
    for m, member in enumerate(members):
        if any(map(is_lazy, member.parameters())):
            continue  # not initialised yet
        fingerprint = tuple(float(p.detach().double().sum()) for p in member.parameters())
        if fingerprint and (twin := seen.setdefault(fingerprint, m)) != m:
            raise UsageError(f"Members {twin} and {m} have the same weights. Initialise each member at random.")

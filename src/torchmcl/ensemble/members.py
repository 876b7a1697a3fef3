"""The same part of every member: M modules that are asked together."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Layers that do to (M, B, D) what they do to (B, D).
POINTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Identity)


class MemberList(nn.ModuleList):
    """M modules, asked one after another; it loads a state dict of `BatchedMembers` too."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, …) -> M of (B, …)."""
        return [module(x) for module, x in zip(self, inputs, strict=True)]

    def convert_state(self, state: dict[str, Any], prefix: str) -> None:
        """Rename in place the weights that `BatchedMembers` named, below `prefix`, as those of M modules."""
        for name, _ in self[0].named_parameters():
            key = prefix + batched_name(name)
            if key in state and state[key].shape[:1] == (len(self),):
                state |= {f"{prefix}{m}.{name}": weight for m, weight in enumerate(state.pop(key))}

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        self.convert_state(state, prefix)
        super()._load_from_state_dict(state, prefix, *others)


class BatchedMembers(nn.Module):
    """M equal chains of linear and pointwise layers, asked in one batched matrix product per layer.

    The weights are copied into one parameter (M, out, in) per layer, of which an optimiser makes M times fewer steps:
    the chains themselves do not learn. It loads a state dict of M separate chains too.

    >>> chains = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    >>> stacked, x = BatchedMembers(chains), torch.randn(5, 4)
    >>> torch.allclose(torch.stack(stacked([x] * 3)), torch.stack([chain(x) for chain in chains]), atol=1e-6)
    True
    >>> {name: tuple(weights.shape) for name, weights in stacked.named_parameters()}
    {'0_weight': (3, 8, 4), '0_bias': (3, 8), '2_weight': (3, 2, 8), '2_bias': (3, 2)}
    """

    def __init__(self, chains: Sequence[nn.Sequential]) -> None:
        super().__init__()
        self.members = len(chains)
        self.layers = {name: None if isinstance(layer, nn.Linear) else layer for name, layer in _layers(chains[0])}
        self.names = [name for name, _ in chains[0].named_parameters()]  # such as 0.weight
        for name in self.names:
            weights = torch.stack([chain.get_parameter(name).detach() for chain in chains])
            self.register_parameter(batched_name(name), nn.Parameter(weights))

    def extra_repr(self) -> str:
        """The chain of each member."""
        layers = ["Linear" if layer is None else type(layer).__name__ for layer in self.layers.values()]
        return f"{self.members} x ({', '.join(layers)})"

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, …) -> M of (B, …)."""
        shared = all(x is inputs[0] for x in inputs)
        return list(self._ask(inputs[0] if shared else torch.stack(list(inputs)), shared=shared).unbind())

    def __len__(self) -> int:
        return self.members

    def __getitem__(self, member: int) -> Callable[[Tensor], Tensor]:
        """One member's chain: (B, …) -> (B, …)."""
        return lambda x: self._ask(x, shared=True, members=slice(member, member + 1))[0]

    def _ask(self, x: Tensor, *, shared: bool, members: slice = slice(None)) -> Tensor:
        """(B, …) that all of them see, or (M, B, …) -> (M, B, …)."""
        for name, layer in self.layers.items():
            if layer is None:
                x, shared = self._linear(x, name, shared, members), False
            else:
                x = x.flatten(1 if shared else 2) if isinstance(layer, nn.Flatten) else layer(x)
        return x

    def _linear(self, x: Tensor, name: str, shared: bool, members: slice) -> Tensor:
        weight = getattr(self, f"{name}_weight")[members]
        bias = getattr(self, f"{name}_bias")[members] if f"{name}.bias" in self.names else None
        out = (x.expand(len(weight), *x.shape) if shared else x) @ weight.mT
        return out if bias is None else out.add_(bias[:, None])  # faster than baddbmm

    def convert_state(self, state: dict[str, Any], prefix: str) -> None:
        """Stack in place the weights of M separate chains, below `prefix`."""
        for name in self.names:
            keys = [f"{prefix}{m}.{name}" for m in range(self.members)]
            if all(key in state for key in keys) and len({state[key].shape for key in keys}) == 1:
                state[prefix + batched_name(name)] = torch.stack([state.pop(key) for key in keys])

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        self.convert_state(state, prefix)
        super()._load_from_state_dict(state, prefix, *others)


def batched_name(name: str) -> str:
    """The name that `BatchedMembers` gives to the weights of that name in M chains.

    >>> batched_name("0.weight")
    '0_weight'
    """
    return name.replace(".", "_")


def converted_state(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with the names that the module has, whether or not it was written by one that stacks its members.

    >>> each = MemberList(nn.Sequential(nn.Linear(4, 2)) for _ in range(3))
    >>> list(converted_state(BatchedMembers(list(each)), each.state_dict()))
    ['0_weight', '0_bias']
    """
    state = dict(state)
    for name, part in module.named_modules():
        if isinstance(part, MemberList | BatchedMembers):
            part.convert_state(state, f"{name}." if name else "")
    return state


def as_members(modules: Iterable[nn.Module]) -> MemberList | BatchedMembers:
    """M modules to be asked together, in the fastest way there is for them; nobody else may hold or train them.

    >>> type(as_members([nn.Sequential(nn.Linear(4, 2)) for _ in range(3)])).__name__
    'BatchedMembers'
    >>> type(as_members([nn.Conv2d(3, 8, 3) for _ in range(3)])).__name__
    'MemberList'
    """
    modules = list(modules)
    forms = [_form(module) for module in modules]
    stackable = len(modules) > 1 and forms[0] is not None and all(form == forms[0] for form in forms)
    return BatchedMembers(modules) if stackable else MemberList(modules)  # type: ignore[arg-type]


def _form(module: nn.Module) -> list[tuple] | None:
    """What two chains must have in common to be stacked, None where a module is no such chain."""
    if type(module) is not nn.Sequential or not any(type(layer) is nn.Linear for layer in module):
        return None
    allowed = all(
        type(layer) in (nn.Linear, *POINTWISE) or (type(layer) is nn.Flatten and layer.start_dim == 1)
        for layer in module
    )
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())
    wholly = all(p.requires_grad for p in module.parameters())
    tied = len(list(module.parameters())) < sum(len(list(layer.parameters())) for layer in module)
    if not allowed or hooked or not wholly or tied:
        return None
    return [
        (name, str(layer), *((p.shape, p.dtype, p.device) for p in layer.parameters()))
        for name, layer in _layers(module)
    ]


def _layers(chain: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """The layers of a chain with their names, which need not be their places; one may occur twice."""
    return [(name, layer) for name, layer in chain.named_modules(remove_duplicate=False) if layer is not chain]

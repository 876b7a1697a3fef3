"""The stems or the bodies of all members as one module."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Layers that accept (M, B, D) as well as (B, D).
POINTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Identity)


class MemberList(nn.ModuleList):
    """M modules that are called one after another. They can also load a state dict of `BatchedMembers`."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, …) -> M of (B, …)."""
        return [module(x) for module, x in zip(self, inputs, strict=True)]

    def separately(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Map M of (B_m, …) to M of (B_m, …): the number of examples differs between members, and can be 0."""
        return complete([module(x) if len(x) else None for module, x in zip(self, inputs, strict=True)])

    def last_inputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of the members' last layers with weights, or of members without: M of (B, …)."""
        return [_last_input(module, x) for module, x in zip(self, inputs, strict=True)]

    def convert_state(self, state: dict[str, Any], prefix: str) -> None:
        """Split the weights of `BatchedMembers` under `prefix`, in place, into one set of weights per module."""
        for name, _ in self[0].named_parameters():
            key = prefix + _batched_name(name)
            if key in state and state[key].shape[:1] == (len(self),):
                state |= {f"{prefix}{m}.{name}": weight for m, weight in enumerate(state.pop(key))}

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        self.convert_state(state, prefix)
        super()._load_from_state_dict(state, prefix, *others)


class BatchedMembers(nn.Module):
    """M chains of the same linear and pointwise layers, computed with one batched matrix product per layer.

    The weights are copied into one parameter (M, out, in) per layer, so that an optimiser updates M times fewer
    tensors. The original chains are not trained. A state dict of M separate chains can be loaded.

    >>> chains = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    >>> batched, x = BatchedMembers(chains), torch.randn(5, 4)
    >>> torch.allclose(torch.stack(batched([x] * 3)), torch.stack([chain(x) for chain in chains]), atol=1e-6)
    True
    >>> {name: tuple(weights.shape) for name, weights in batched.named_parameters()}
    {'0_weight': (3, 8, 4), '0_bias': (3, 8), '2_weight': (3, 2, 8), '2_bias': (3, 2)}
    """

    def __init__(self, chains: Sequence[nn.Sequential]) -> None:
        super().__init__()
        self.members = len(chains)
        self.layers = {name: None if isinstance(layer, nn.Linear) else layer for name, layer in _layers(chains[0])}
        self.names = [name for name, _ in chains[0].named_parameters()]  # such as 0.weight
        for name in self.names:
            weights = torch.stack([chain.get_parameter(name).detach() for chain in chains])
            self.register_parameter(_batched_name(name), nn.Parameter(weights))

    def extra_repr(self) -> str:
        """Return the number of chains and the layers of each chain."""
        layers = ["Linear" if layer is None else type(layer).__name__ for layer in self.layers.values()]
        return f"{self.members} x ({', '.join(layers)})"

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, …) -> M of (B, …)."""
        return list(self.stacked(inputs).unbind())

    def separately(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Map M of (B_m, …) to M of (B_m, …): the number of examples differs between members, and can be 0."""
        inputs = list(inputs)
        for name, layer in self.layers.items():
            if layer is None:
                # `unbind` collects the gradients of all members in one tensor; slices would add up M of them.
                weights, bias = getattr(self, f"{name}_weight").unbind(), getattr(self, f"{name}_bias", None)
                biases = [None] * self.members if bias is None else bias.unbind()
                inputs = [F.linear(*arguments) for arguments in zip(inputs, weights, biases, strict=True)]
            else:
                inputs = [layer(x) for x in inputs]
        return inputs

    def stacked(self, inputs: Sequence[Tensor]) -> Tensor:
        """M of (B, …) -> (M, B, …), the outputs of all members as one tensor."""
        shared = all(x is inputs[0] for x in inputs)
        return self._forward(inputs[0] if shared else torch.stack(list(inputs)), shared=shared)

    def last_inputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs of the members' last linear layers, M of (B, …)."""
        names = list(self.layers)
        last = max(at for at, name in enumerate(names) if self.layers[name] is None)
        return list(self._forward(torch.stack(list(inputs)), shared=False, layers=names[:last]).unbind())

    def __len__(self) -> int:
        return self.members

    def __getitem__(self, member: int) -> Callable[[Tensor], Tensor]:
        """Return the chain of one member: (B, …) -> (B, …)."""
        return lambda x: self._forward(x, shared=True, members=slice(member, member + 1))[0]

    def _forward(
        self, x: Tensor, *, shared: bool, members: slice = slice(None), layers: Sequence[str] | None = None
    ) -> Tensor:
        """Map (B, …), if all members share the input, or (M, B, …) to (M, B, …), by default with all layers."""
        for name in self.layers if layers is None else layers:
            if (layer := self.layers[name]) is None:
                x, shared = self._linear(x, name, shared, members), False
            else:
                x = x.flatten(1 if shared else 2) if isinstance(layer, nn.Flatten) else layer(x)
        return x

    def _linear(self, x: Tensor, name: str, shared: bool, members: slice) -> Tensor:
        weight, bias = getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias", None)
        if members != slice(None):  # a slice of all members would copy the gradients
            weight, bias = weight[members], None if bias is None else bias[members]
        if shared:  # one product with the weights of all members is faster than one per member
            out = F.linear(x, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2])
            # Adding the bias in place to a view would cost six more operations in the backward pass.
            return (out if bias is None else out + bias).movedim(-2, 0)
        out = x @ weight.mT
        return out if bias is None else out.add_(bias[:, None])  # faster than baddbmm

    def convert_state(self, state: dict[str, Any], prefix: str) -> None:
        """Stack the weights of M separate chains under `prefix`, in place."""
        for name in self.names:
            keys = [f"{prefix}{m}.{name}" for m in range(self.members)]
            if all(key in state for key in keys) and len({state[key].shape for key in keys}) == 1:
                state[prefix + _batched_name(name)] = torch.stack([state.pop(key) for key in keys])

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        self.convert_state(state, prefix)
        super()._load_from_state_dict(state, prefix, *others)


def _last_input(module: nn.Module, x: Tensor) -> Tensor:
    """Return the input of the last layer with weights when `module` is applied to x (B, …), or x if there is none."""
    layers = [part for part in module.modules() if part._parameters]
    found = [x]
    if layers:
        with layers[-1].register_forward_pre_hook(lambda _, inputs: found.append(inputs[0])):
            module(x)
    return found[-1]


def _batched_name(name: str) -> str:
    """Convert the name of weights in a chain to their name in `BatchedMembers`."""
    return name.replace(".", "_")


def convert_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a state dict, saved with stacked or separate members, to the parameter names of a module.

    >>> members = MemberList(nn.Sequential(nn.Linear(4, 2)) for _ in range(3))
    >>> list(convert_state_dict(BatchedMembers(list(members)), members.state_dict()))
    ['0_weight', '0_bias']
    """
    state = dict(state)
    for name, part in module.named_modules():
        if isinstance(part, MemberList | BatchedMembers):
            part.convert_state(state, f"{name}." if name else "")
    return state


def complete(outputs: Sequence[Tensor | None]) -> list[Tensor]:
    """Replace None, of members without examples, by empty outputs: M of (B_m, …), at least one of which is not None.

    >>> [tuple(output.shape) for output in complete([None, torch.zeros(3, 2)])]
    [(0, 2), (3, 2)]
    """
    first = next(output for output in outputs if output is not None)
    return [first.new_empty(0, *first.shape[1:]) if output is None else output for output in outputs]


def as_members(modules: Iterable[nn.Module]) -> MemberList | BatchedMembers:
    """Copy M modules into `BatchedMembers` if they are chains of the same layers; otherwise return a `MemberList`.

    >>> type(as_members([nn.Sequential(nn.Linear(4, 2)) for _ in range(3)])).__name__
    'BatchedMembers'
    >>> type(as_members([nn.Conv2d(3, 8, 3) for _ in range(3)])).__name__
    'MemberList'
    """
    modules = list(modules)
    specs = [_chain_spec(module) for module in modules]
    stackable = len(modules) > 1 and specs[0] is not None and all(spec == specs[0] for spec in specs)
    return BatchedMembers(modules) if stackable else MemberList(modules)  # type: ignore[arg-type]


def _chain_spec(module: nn.Module) -> list[tuple] | None:
    """Return the properties that chains must share to be stacked, or None if the module cannot be stacked."""
    if type(module) is not nn.Sequential or not any(type(layer) is nn.Linear for layer in module):
        return None
    allowed = all(
        type(layer) in (nn.Linear, *POINTWISE) or (type(layer) is nn.Flatten and layer.start_dim == 1)
        for layer in module
    )
    hooked = any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())
    trainable = all(p.requires_grad for p in module.parameters())
    tied = len(list(module.parameters())) < sum(len(list(layer.parameters())) for layer in module)
    if not allowed or hooked or not trainable or tied:
        return None
    return [
        (name, str(layer), *((p.shape, p.dtype, p.device) for p in layer.parameters()))
        for name, layer in _layers(module)
    ]


def _layers(chain: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the layers of a chain with their names, which may differ from their indices; a layer can occur twice."""
    return [(name, layer) for name, layer in chain.named_modules(remove_duplicate=False) if layer is not chain]

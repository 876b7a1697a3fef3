"""The same part of every member: M modules that are asked together."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Layers that do to (M, B, D) what they do to (B, D).
POINTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Identity)


class Each(nn.ModuleList):
    """M modules, asked one after another."""

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """M of (B, …) -> M of (B, …)."""
        return [module(x) for module, x in zip(self, inputs, strict=True)]


class Stacked(nn.Module):
    """M equal chains of linear and pointwise layers, asked in one batched matrix product a layer.

    Weights lie as (M, out, in); a state dict has the names and shapes that M separate chains have.

    >>> chains = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for _ in range(3)]
    >>> stacked, x = Stacked(chains), torch.randn(5, 4)
    >>> torch.allclose(torch.stack(stacked([x] * 3)), torch.stack([chain(x) for chain in chains]), atol=1e-6)
    True
    >>> len(stacked.state_dict()), stacked.state_dict()["2.0.weight"].shape
    (12, torch.Size([8, 4]))
    """

    def __init__(self, chains: Sequence[nn.Sequential]) -> None:
        super().__init__()
        self.members = len(chains)
        self.layers = [None if isinstance(layer, nn.Linear) else layer for layer in chains[0]]
        self.names = [name for name, _ in chains[0].named_parameters()]  # such as 0.weight
        for name in self.names:
            weights = torch.stack([chain.get_parameter(name).detach() for chain in chains])
            self.register_parameter(name.replace(".", "_"), nn.Parameter(weights))

    def extra_repr(self) -> str:
        """The chain of each member."""
        layers = ["Linear" if layer is None else type(layer).__name__ for layer in self.layers]
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
        for at, layer in enumerate(self.layers):
            if layer is None:
                x, shared = self._linear(x, at, shared, members), False
            else:
                x = x.flatten(1 if shared else 2) if isinstance(layer, nn.Flatten) else layer(x)
        return x

    def _linear(self, x: Tensor, at: int, shared: bool, members: slice) -> Tensor:
        weight = getattr(self, f"{at}_weight")[members]
        bias = getattr(self, f"{at}_bias")[members] if f"{at}.bias" in self.names else None
        out = (x.expand(len(weight), *x.shape) if shared else x) @ weight.mT
        return out if bias is None else out.add_(bias[:, None])  # faster than baddbmm

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for m in range(self.members):
            for name in self.names:
                weights = getattr(self, name.replace(".", "_"))
                destination[f"{prefix}{m}.{name}"] = weights[m] if keep_vars else weights[m].detach()

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        for name in self.names:
            keys = [f"{prefix}{m}.{name}" for m in range(self.members)]
            if all(key in state for key in keys):
                state[f"{prefix}{name.replace('.', '_')}"] = torch.stack([state.pop(key) for key in keys])
        super()._load_from_state_dict(state, prefix, *others)


def crew(modules: Sequence[nn.Module]) -> Each | Stacked:
    """M modules to be asked together, in the fastest way there is for what they are.

    >>> type(crew([nn.Sequential(nn.Linear(4, 2)) for _ in range(3)])).__name__
    'Stacked'
    >>> type(crew([nn.Conv2d(3, 8, 3) for _ in range(3)])).__name__
    'Each'
    """
    forms = [_form(module) for module in modules]
    stackable = len(modules) > 1 and forms[0] is not None and all(form == forms[0] for form in forms)
    return Stacked(modules) if stackable else Each(modules)  # type: ignore[arg-type]


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
    if not allowed or hooked or not wholly:
        return None
    return [(str(layer), *((p.shape, p.dtype, p.device) for p in layer.parameters())) for layer in module]

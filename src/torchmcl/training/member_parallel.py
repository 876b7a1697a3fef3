"""Member-parallel training (`strategy="members"`): each process trains its own members, on complete batches.

Without an exchange, the gradient of a member depends on the other members only through the assignment. Once the
assignment is known in advance, such as from a fixed memory, processes therefore need nothing from each other until the
end of the epoch. Before that, they exchange the members' outputs (M, B, C), from which each process computes the same
assignment. Each process stores all members, and those of other processes are brought up to date by `share`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from torchmcl.ensemble import Ensemble
from torchmcl.ensemble.exchange import NoExchange
from torchmcl.ensemble.members import BatchedMembers
from torchmcl.errors import UsageError
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe
from torchmcl.training.sample_others import Sample


class MemberParallel:
    """The division of M members among processes: process r trains the members r, r + world, r + 2 world, …

    Args:
        members: The number of members M.
        rank: The index of this process.
        world: The number of processes, at most M.
        device: The device of the outputs.

    >>> MemberParallel(5, rank=1, world=2, device="cpu").own
    tensor([False,  True, False,  True, False])
    """

    def __init__(self, members: int, *, rank: int, world: int, device: str | torch.device) -> None:
        self.rank, self.world = rank, world
        self.own = torch.arange(members, device=device) % world == rank
        self.members = range(members)

    def own_parts(self, sample: Sample | None = None) -> list[Tensor | None]:
        """Return M of (B_m,), the positions of the examples that pass through each member here.

        None stands for all examples, of own members if there is no `sample`. No example passes through others.
        """
        nothing = torch.empty(0, dtype=torch.int64, device=self.own.device)
        parts = [None for _ in self.members] if sample is None else sample.parts
        return [part if m % self.world == self.rank else nothing for m, part in enumerate(parts)]

    def of_own(self, sample: Sample) -> Sample:
        """Return a sample without the examples of other processes' members."""
        return sample._replace(parts=self.own_parts(sample), weight=sample.weight * self.own[:, None])

    def gather(self, logits: Tensor) -> Tensor:
        """Replace the zeros of other processes' members by their logits (M, B, C, …), which carry no gradient."""
        together = logits.detach().clone()
        distributed.all_reduce(together)  # exact, because each value is added to zeros
        return torch.where(self.own.reshape(-1, *[1] * (logits.ndim - 1)), logits, together)

    @torch.no_grad()
    def share(self, ensemble: Ensemble, optimizer: Optimizer | None = None) -> None:
        """Send the weights and buffers of each member, and the state of its optimiser, to all processes."""
        for m in self.members:
            source = m % self.world
            for value in _values(ensemble, m):
                _broadcast(value, source)
            if optimizer is not None:
                _share_states(optimizer.state, list(_weights(ensemble, m)), source)


def check_members(ensemble: Ensemble, recipe: Recipe, machine: Machine) -> None:
    """Raise UsageError if several processes are to train different members, but cannot do so independently."""
    if not machine.member_parallel:
        return
    members, world = len(ensemble.bodies), machine.devices * machine.num_nodes
    if world > members:
        raise UsageError(
            f"The strategy members needs at least one member per process, got {members} members for {world} processes."
        )
    independent = isinstance(ensemble.exchange, NoExchange)
    if ensemble.exchange.shared_stem:  # a frozen trunk is computed by each process
        shared = (*ensemble.stems.parameters(), *ensemble.exchange.parameters())
        independent = not any(weight.requires_grad for weight in shared)
    if not independent or ensemble.gate is not None:
        raise UsageError(
            "The strategy members needs members that share no trained weights. Use exchange=none, or strategy=ddp."
        )
    if recipe.clip is not None:
        raise UsageError("The strategy members does not support clip, whose norm is that of all members. Omit it.")


def _parts(ensemble: Ensemble) -> Iterator[Any]:
    yield from [ensemble.bodies] if ensemble.exchange.shared_stem else [ensemble.stems, ensemble.bodies]


def _values(ensemble: Ensemble, m: int) -> Iterator[Tensor]:
    """Yield the weights and buffers of a member, as views."""
    for part in _parts(ensemble):
        if isinstance(part, BatchedMembers):
            yield from (weight[m] for weight in part.parameters())
        else:
            yield from (value for value in part[m].state_dict().values() if isinstance(value, Tensor))


def _weights(ensemble: Ensemble, m: int) -> Iterator[tuple[nn.Parameter, int | None]]:
    """Yield the parameters of a member, and the index of the member if they contain those of all members."""
    for part in _parts(ensemble):
        batched = isinstance(part, BatchedMembers)
        yield from ((weight, m if batched else None) for weight in (part if batched else part[m]).parameters())


class _About(NamedTuple):
    """What another process needs to allocate a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, value: Any) -> Any:
        """Describe a tensor; other values are returned as they are."""
        return cls(value.shape, value.dtype, value.device.type) if isinstance(value, Tensor) else value

    def empty(self, weight: Tensor) -> Tensor:
        """Return a tensor beside a weight, in its memory format if it has the same shape."""
        device = weight.device if self.device == weight.device.type else self.device
        if self.shape == weight.shape:
            return torch.empty_like(weight, dtype=self.dtype, device=device, requires_grad=False)
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _share_states(states: Any, weights: list[tuple[nn.Parameter, int | None]], source: int) -> None:
    """Send the optimiser's states of parameters, or of their rows, from process `source` to all processes.

    The other processes have no states of parameters that they have never trained.
    """
    about = [[{name: _About.of(value) for name, value in states.get(one, {}).items()} for one, _ in weights]]
    distributed.broadcast_object_list(about, src=source)
    for (weight, row), values in zip(weights, about[0], strict=True):
        for name, value in values.items():
            state = states[weight]
            if not isinstance(value, _About):
                state[name] = value
                continue
            if name not in state:
                state[name] = value.empty(weight)
            _broadcast(state[name] if row is None or value.shape != weight.shape else state[name][row], source)


def _broadcast(value: Tensor, source: int) -> None:
    """Send a tensor of any memory format from process `source` to all processes, in place."""
    sent = value.detach().contiguous()
    if sent.device.type == "cpu" and distributed.get_backend() == "nccl":  # such as the number of steps of Adam
        sent = sent.cuda()
    distributed.broadcast(sent, src=source)
    value.copy_(sent)

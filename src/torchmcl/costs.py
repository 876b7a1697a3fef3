"""What it costs a member to take an example, or to leave it.

A cost is any callable (logits (M, B, C, …), target (B, …), state) -> (M, B), averaged over pixels where there are any.
"""

from collections.abc import Callable
from functools import partial
from math import log
from typing import TypeVar

import torch
from torch import Tensor, nn

from torchmcl.errors import UsageError
from torchmcl.opinions import wide
from torchmcl.state import State

Cost = Callable[[Tensor, Tensor, State], Tensor]
C = TypeVar("C", bound=Cost)


def memberwise(cost: C) -> C:
    """Mark a cost that is the same for a member whether or not the others' logits are there."""
    cost.memberwise = True  # type: ignore[attr-defined]
    return cost


def is_memberwise(cost: Cost) -> bool:
    """Whether a cost was so marked, as it is or scaled.

    >>> is_memberwise(Scaled(cross_entropy, 0.5)), is_memberwise(to_random_label)
    (True, False)
    """
    while isinstance(cost, Scaled | partial):
        cost = cost.cost if isinstance(cost, Scaled) else cost.func
    return getattr(cost, "memberwise", False)


@memberwise
def cross_entropy(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """l_m = -log p_m(y), the task's own loss: eq. 1 to 5 of Kim et al. 2022; of soft targets -sum_c y_c log p_m(c).

    >>> cross_entropy(torch.zeros(2, 1, 4), torch.tensor([3]), State())
    tensor([[1.3863],
            [1.3863]])
    """
    log_p = log_probabilities(logits, state)
    if target.is_floating_point():
        return state.by_example(-(target * log_p[:, :, : target.shape[1]]).sum(2))
    return _label(log_p, target.expand(len(logits), *target.shape), state)


@memberwise
def nothing(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """0: a member that leaves an example learns nothing from it (IE, MCL, sMCL).

    >>> nothing(torch.randn(2, 1, 4), torch.tensor([3]), State())
    tensor([[0.],
            [0.]])
    """
    return wide(logits).new_zeros(logits.shape[:2])


@memberwise
def to_uniform(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """KL(U || p_m) = -log C - 1/C sum_c log p_m(c): CMCL's confident oracle loss, Lee et al. 2017.

    >>> to_uniform(torch.zeros(1, 1, 4), torch.tensor([3]), State())
    tensor([[0.]])
    """
    return state.by_example(-log(logits.shape[2]) - log_probabilities(logits, state).mean(2))


def to_random_label(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """-log p_m(c), c uniform over the C classes: CMCL's stochastic labelling, equal to KL(U || p_m) + log C on average.

    The label may hit the true one. It is drawn from PyTorch's generator, as dropout's masks are.

    >>> to_random_label(torch.zeros(1, 1, 4), torch.tensor([3]), State())
    tensor([[1.3863]])
    """
    members, examples, classes, *pixels = logits.shape
    label = torch.randint(classes, (members, examples, *pixels), device=logits.device)
    return _label(log_probabilities(logits, state), label, state)


@memberwise
def to_auxiliary(logits: Tensor, target: Tensor, state: State, *, classes: int | None = None) -> Tensor:
    """KL(A || p_m) = -log p_m(auxiliary), the auxiliary class being the last output: eq. 5 of Kim et al. 2022.

    >>> to_auxiliary(torch.zeros(1, 1, 4), torch.tensor([2]), State())
    tensor([[1.3863]])
    """
    outputs = logits.shape[2]
    if classes is not None and outputs != classes + 1:
        raise UsageError(
            f"Expected {classes + 1} outputs, {classes} classes and the auxiliary one last, got {outputs}. "
            "Build the network with method.outputs."
        )
    soft = target.is_floating_point()
    if target.device.type == "cpu" and (last := target.shape[1] - 1 if soft else int(target.max())) >= outputs - 1:
        raise UsageError(
            f"Expected targets from 0 to {outputs - 2}, below the auxiliary class, got {last}. "
            f"Give the network one output more than there are classes."
        )
    return state.by_example(-log_probabilities(logits, state).select(2, outputs - 1))


class Scaled(nn.Module):
    """A cost times a number.

    >>> Scaled(cross_entropy, 0.5)(torch.zeros(1, 1, 4), torch.tensor([3]), State())
    tensor([[0.6931]])
    """

    def __init__(self, cost: Cost, by: float) -> None:
        super().__init__()
        self.cost = cost
        self.by = by

    def extra_repr(self) -> str:
        """What is scaled, where it is a plain function, and by how much."""
        name = "" if isinstance(self.cost, nn.Module) else f"{getattr(self.cost, '__name__', self.cost)}, "
        return f"{name}by={self.by}"

    def forward(self, logits: Tensor, target: Tensor, state: State) -> Tensor:
        """(M, B, C, …), (B, …) -> (M, B)."""
        return self.by * self.cost(logits, target, state)


def log_probabilities(logits: Tensor, state: State) -> Tensor:
    """log p_m (M, B, C, …), computed once for all costs of a batch.

    >>> log_probabilities(torch.zeros(1, 1, 2), State())
    tensor([[[-0.6931, -0.6931]]])
    """
    known, graph, log_p = state.shared.get("log_p", (None, None, None))
    if known is not logits or graph != torch.is_grad_enabled():
        log_p = wide(logits).log_softmax(2)
        state.shared["log_p"] = logits, torch.is_grad_enabled(), log_p
    return log_p


def _label(log_p: Tensor, label: Tensor, state: State) -> Tensor:
    """-log p_m(label), log_p (M, B, C, …), label (M, B, …) -> (M, B)."""
    return state.by_example(-log_p.gather(2, label.unsqueeze(2)).squeeze(2))

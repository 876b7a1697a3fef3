"""Costs of taking or leaving an example.

A cost is any callable (logits (M, B, C, …), target (B, …), state) -> (M, B). It averages over pixels.
"""

from functools import partial
from math import log

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.errors import UsageError
from torchmcl.structures.output import to_float32
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, memberwise
from torchmcl.tasks.labels import cross_entropy, log_probabilities, of_label

__all__ = [
    "Cost",
    "Scaled",
    "cross_entropy",
    "is_memberwise",
    "log_probabilities",
    "memberwise",
    "nothing",
    "to_auxiliary",
    "to_declined",
    "to_random_label",
    "to_uniform",
]


def is_memberwise(cost: Cost) -> bool:
    """Return whether a cost, or the cost that it scales, is marked as memberwise.

    >>> is_memberwise(Scaled(cross_entropy, 0.5)), is_memberwise(to_random_label)
    (True, False)
    """
    while isinstance(cost, Scaled | partial):
        cost = cost.cost if isinstance(cost, Scaled) else cost.func
    return getattr(cost, "memberwise", False)


@memberwise
def nothing(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """Return costs of 0, (M, B): a member learns nothing from examples that it leaves, as in IE, MCL and sMCL.

    >>> nothing(torch.randn(2, 1, 4), torch.tensor([3]), State())
    tensor([[0.],
            [0.]])
    """
    return to_float32(logits).new_zeros(logits.shape[:2])


@memberwise
def to_uniform(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute KL(U || p_m) = -log C - 1/C sum_c log p_m(c), (M, B), as in the confident oracle loss of Lee et al. 2017.

    >>> to_uniform(torch.zeros(1, 1, 4), torch.tensor([3]), State())
    tensor([[0.]])
    """
    return state.by_example(-log(logits.shape[2]) - log_probabilities(logits, state).mean(2))


def to_random_label(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute -log p_m(c), (M, B), for random classes c: CMCL's stochastic labelling, Lee et al. 2017.

    The expectation of this cost is KL(U || p_m) + log C. Classes are drawn with PyTorch's global generator and can
    equal the target.

    >>> to_random_label(torch.zeros(1, 1, 4), torch.tensor([3]), State())
    tensor([[1.3863]])
    """
    members, examples, classes, *pixels = logits.shape
    label = torch.randint(classes, (members, examples, *pixels), device=logits.device)
    return of_label(log_probabilities(logits, state), label, state)


@memberwise
def to_auxiliary(logits: Tensor, target: Tensor, state: State, *, classes: int | None = None) -> Tensor:
    """Compute KL(A || p_m) = -log p_m(auxiliary), (M, B) (Kim et al. 2022, eq. 5); A is 1 for the auxiliary class.

    Args:
        logits: (M, B, C + 1, …); the auxiliary class is the last output.
        target: (B, …), classes, or (B, C, …), probabilities. The target is checked but does not affect the cost.
        classes: The number of classes C; if given, the number of outputs is checked.

    Raises:
        UsageError: If the logits have no auxiliary class.

    >>> to_auxiliary(torch.zeros(1, 1, 4), torch.tensor([2]), State())
    tensor([[1.3863]])
    """
    outputs = logits.shape[2]
    if classes is not None and outputs != classes + 1:
        raise UsageError(
            f"Expected {classes + 1} outputs for {classes} classes and the auxiliary class, got {outputs}. "
            "Build the network with method.outputs."
        )
    soft = target.is_floating_point()
    if target.device.type == "cpu" and (last := target.shape[1] - 1 if soft else int(target.max())) >= outputs - 1:
        raise UsageError(
            f"Expected targets from 0 to {outputs - 2}, below the auxiliary class, got {last}. "
            "Build the network with method.outputs."
        )
    return state.by_example(-log_probabilities(logits, state).select(2, outputs - 1))


def to_declined(outputs: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute -log p(auxiliary) = -log sigmoid(a), (M, B): a member leaves an example by declining it.

    The last output a is the logit of "not mine"; see `tasks.regression.Claimed`.

    >>> to_declined(torch.zeros(1, 1, 3), torch.zeros(1, 2), State())
    tensor([[0.6931]])
    """
    return F.softplus(-to_float32(outputs)[:, :, -1])


class Scaled(nn.Module):
    """A cost multiplied by the factor `by`.

    >>> Scaled(cross_entropy, 0.5)(torch.zeros(1, 1, 4), torch.tensor([3]), State())
    tensor([[0.6931]])
    """

    def __init__(self, cost: Cost, by: float) -> None:
        super().__init__()
        self.cost = cost
        self.by = by

    def extra_repr(self) -> str:
        """Return the cost's name, if it is a plain function, and the factor."""
        name = "" if isinstance(self.cost, nn.Module) else f"{getattr(self.cost, '__name__', self.cost)}, "
        return f"{name}by={self.by}"

    def forward(self, logits: Tensor, target: Tensor, state: State) -> Tensor:
        """Return the scaled cost: logits (M, B, C, …), target (B, …) -> (M, B)."""
        return self.by * self.cost(logits, target, state)

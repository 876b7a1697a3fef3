"""Assignment rules.

An assignment is any callable (regret (M, B), state) -> weights (M, B). A member's regret is the cost of taking an
example minus the cost of leaving it. For each example, the weights sum to at least k. They carry no gradient. If
examples have several targets each, the regrets and the weights are (M, B, T), and each target is assigned.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from torchmcl._utils.durations import Duration
from torchmcl.errors import UsageError
from torchmcl.structures.state import State

Assignment = Callable[[Tensor, State], Tensor]
A = TypeVar("A", bound=Callable[..., Tensor])


def loss_independent(assignment: A) -> A:
    """Mark an assignment that ignores the regret, so that its weights are known before the forward pass."""
    assignment.loss_independent = True  # type: ignore[attr-defined]
    return assignment


@loss_independent
def everyone(regret: Tensor, state: State) -> Tensor:
    """Assign every example to every member, as in the independent ensemble: (M, B) -> ones (M, B).

    >>> everyone(torch.tensor([[0.3], [0.1]]), State())
    tensor([[1.],
            [1.]])
    """
    return torch.ones_like(regret)


@dataclass(frozen=True)
class TopK:
    """Assign each example to the k members with the lowest regret; ties go to the first member.

    This assignment exactly minimises eq. 3 and 5 of Kim et al. 2022 over all choices of k members.

    >>> TopK(1)(torch.tensor([[0.3], [0.1], [0.1]]), State())
    tensor([[0.],
            [1.],
            [0.]])
    """

    k: int

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """Return weights (M, B) for regrets (M, B)."""
        if self.k == 1:  # fewer operations than with a mask; the first minimum is returned in a tie
            return torch.zeros_like(regret).scatter_(0, regret.min(0, keepdim=True).indices, 1)
        return top_k(-regret, self.k, dim=0).to(regret.dtype)


@dataclass(frozen=True)
class Relaxed:
    """Relaxed winner-takes-all, Rupprecht et al. 2017: winners have weight 1 - eps, others have k eps / (M - k).

    The paper defines only k = 1; for other k, the weights are chosen to sum to k.

    Args:
        k: The number of winners.
        eps: The weight that each winner gives up.

    >>> Relaxed(1, eps=0.1)(torch.tensor([[0.3], [0.1], [0.2]]), State())
    tensor([[0.0500],
            [0.9000],
            [0.0500]])
    """

    k: int
    eps: float = 0.05

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """Return weights (M, B) for regrets (M, B)."""
        won = TopK(self.k)(regret, state)
        if self.k == len(regret):
            return won
        return torch.where(won > 0, 1 - self.eps, self.k * self.eps / (len(regret) - self.k)).to(regret.dtype)


@dataclass(frozen=True)
class Evolving:
    """Evolving winner-takes-all, Makansi et al. 2019: the n members with the lowest regret take each example.

    n starts at M and is halved until it reaches k, in stages of equal length.

    >>> [int(Evolving(1)(torch.rand(5, 1), State(epoch, 6)).sum()) for epoch in range(1, 7)]
    [5, 5, 2, 2, 1, 1]
    """

    k: int

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """Return weights (M, B) for regrets (M, B)."""
        stages, (epoch, epochs) = self._stages(len(regret)), state.schedule()
        return TopK(stages[min((epoch - 1) * len(stages) // epochs, len(stages) - 1)])(regret, state)

    def schedule_end(self, epochs: int, members: int) -> int:
        """Return the number of epochs before the last stage."""
        stages = len(self._stages(members))
        return -(-(stages - 1) * epochs // stages)

    def _stages(self, members: int) -> list[int]:
        stages = [members]
        while stages[-1] > self.k:
            stages.append(max(stages[-1] // 2, self.k))
        return stages


@dataclass(frozen=True)
class Annealed:
    """Annealed assignment, Perera et al. 2024: softmax(-regret / T) with T = start * decay ** (epoch - 1).

    Below T = `hard_below`, the assignment is `TopK`. The paper covers only k = 1. For k > 1, the weights are
    min(1, c softmax), with c chosen so that the weights sum to k. Of all weights in [0, 1] that sum to k, these have
    the smallest KL divergence from the softmax.

    Args:
        k: The number of members that take each example.
        start: The temperature in the first epoch.
        decay: The factor that multiplies T after each epoch. The paper uses 0.95 in schedules of hundreds of epochs.
        cooling: The duration over which T falls to `hard_below` if `decay` is None [I].
        hard_below: The lowest temperature at which the softmax is used.

    >>> Annealed(1)(torch.tensor([[0.0], [0.5]]), State(1, 100))
    tensor([[0.7311],
            [0.2689]])
    """

    k: int
    start: float = 0.5
    decay: float | None = None
    cooling: Duration = "80%"
    hard_below: float = 5e-4

    def temperature(self, state: State) -> float:
        """Return the temperature in an epoch, or 0 if the assignment is hard.

        >>> [round(Annealed(1).temperature(State(epoch, 10)), 4) for epoch in (1, 5, 8, 9)]
        [0.5, 0.0158, 0.0012, 0]
        """
        epoch = state.at_epoch()
        if self.decay is not None:
            temperature = self.start * self.decay ** (epoch - 1)
            return temperature if temperature >= self.hard_below else 0
        cooling = state.epochs_in(self.cooling, "cooling")
        if epoch > cooling:
            return 0
        return self.start * min(self.hard_below / self.start, 1) ** ((epoch - 1) / cooling)

    def schedule_end(self, epochs: int, members: int) -> int:
        """Return the number of epochs before the assignment is hard."""
        return sum(self.temperature(State(epoch, epochs)) > 0 for epoch in range(1, epochs + 1))

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """Return weights (M, B) for regrets (M, B)."""
        temperature = self.temperature(state)
        if not temperature or self.k >= len(regret):
            return TopK(self.k)(regret, state)
        return soft_top_k(-regret.detach() / temperature, self.k)


def soft_top_k(scores: Tensor, k: int) -> Tensor:
    """Return weights min(1, c softmax(scores)) along the first dimension, with c chosen so that they sum to k.

    Of all weights in [0, 1] that sum to k, these have the smallest KL divergence from the softmax.

    >>> soft_top_k(torch.tensor([[9.0], [0.0], [0.0]]), 2)
    tensor([[1.0000],
            [0.5000],
            [0.5000]])
    """
    if k == 1:
        return scores.softmax(0)
    scores = scores.log_softmax(0)
    ordered = scores.sort(0, descending=True).values
    # If the j best members have weight 1, the others share the weight k - j, which determines c_j. The solution is
    # the smallest j for which no other weight exceeds 1.
    rest = torch.arange(k, 0, -1, device=scores.device, dtype=scores.dtype)
    rest = rest.reshape(-1, *[1] * (scores.ndim - 1))
    log_c = rest.log() - ordered.flip(0).logcumsumexp(0).flip(0)[:k]
    feasible = (log_c + ordered[:k] <= 0).to(torch.uint8)
    feasible[-1] = 1  # always feasible, except for rounding errors
    return (scores + log_c.gather(0, feasible.argmax(0, keepdim=True))).clamp_max(0).exp()


def top_k(scores: Tensor, k: int, *, dim: int) -> Tensor:
    """Return a mask of the k highest scores along `dim`; ties go to the first one. Raises UsageError if k is too large.

    >>> top_k(torch.tensor([[3, 7, 7], [0, 0, 0]]), 1, dim=1)
    tensor([[False,  True, False],
            [ True, False, False]])
    """
    if not 1 <= k <= scores.shape[dim]:
        raise UsageError(f"Expected 1 <= k <= {scores.shape[dim]} members, got k={k}.")
    if k == 1:  # faster, also than argmax; the first maximum is returned in a tie
        order = scores.max(dim, keepdim=True).indices
    else:
        order = scores.argsort(dim=dim, descending=True, stable=True).narrow(dim, 0, k)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(dim, order, True)


def balanced(counts: Tensor, k: int) -> Tensor:
    """Assign k members to each class so that all members have the same number of classes, to within one.

    The mask (classes, M) maximises the sum of the `counts` (classes, M) that it selects; see `transport`. The rule is
    not in the paper, whose top-k rule per class can leave a member without a class. Raises UsageError if k exceeds the
    number of members.

    >>> balanced(torch.tensor([[9, 1], [8, 3], [7, 0], [6, 0]]), 1).int()
    tensor([[1, 0],
            [0, 1],
            [1, 0],
            [0, 1]], dtype=torch.int32)
    """
    classes, members = counts.shape
    if not 1 <= k <= members:
        raise UsageError(f"Expected 1 <= k <= {members} members, got k={k}.")
    each = counts.new_full((members,), classes * k)
    return transport(-counts, k, each // members, -(-each // members)).bool()


def transport(cost: Tensor, k: int, low: Tensor, high: Tensor, weight: Tensor | None = None) -> Tensor:
    """Assign k members to each row of `cost` (N, M) with the least total cost and limits on the members' loads.

    A member's load, the sum of the weights of its rows, is from `low` (M,) to `high` (M,). This is a transportation
    problem: without weights, its constraint matrix is totally unimodular, so the vertices of the linear program are
    integral. With weights (N,), by default 1, rows can be split between members.

    >>> transport(torch.tensor([[0, 5], [0, 4], [0, 9]]), 1, torch.tensor([1, 1]), torch.tensor([2, 2])).int()
    tensor([[1, 0],
            [0, 1],
            [1, 0]], dtype=torch.int32)
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    rows, members = cost.shape
    weights = (torch.ones(rows) if weight is None else weight.cpu() / weight.mean().cpu())[None].numpy()
    scale = 1 if weight is None else float(weight.mean())
    per_row = kron(eye_array(rows), torch.ones(1, members).numpy())
    per_member = kron(weights, eye_array(members))
    solution = linprog(
        (cost.cpu().double().numpy() * weights.T).ravel(),
        A_eq=per_row.tocsr(),
        b_eq=[k] * rows,
        A_ub=vstack([per_member, -per_member]).tocsr(),
        b_ub=[*(high / scale).tolist(), *(-low / scale).tolist()],
        bounds=(0, 1),
        method="highs-ds",
    )
    found = torch.from_numpy(solution.x.reshape(rows, members)).to(cost.device).abs()
    return torch.where((found - found.round()).abs() < 1e-6, found.round(), found)  # to within its tolerance

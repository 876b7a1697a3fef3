"""Who takes which example.

An assignment is any callable (regret (M, B), state) -> weights (M, B). Regret is what a member loses by taking the
example rather than leaving it; weights sum to K over the members and carry no gradient.
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
    """Mark an assignment that does not look at the regret: who takes what is known before anyone has answered."""
    assignment.loss_independent = True  # type: ignore[attr-defined]
    return assignment


@loss_independent
def everyone(regret: Tensor, state: State) -> Tensor:
    """Every member takes every example: the independent ensemble.

    >>> everyone(torch.tensor([[0.3], [0.1]]), State())
    tensor([[1.],
            [1.]])
    """
    return torch.ones_like(regret)


@dataclass(frozen=True)
class TopK:
    """The k members of least regret take it: the exact minimum of eq. 3 and 5 over all choices of k of M members.

    >>> TopK(1)(torch.tensor([[0.3], [0.1], [0.1]]), State())  # of equals, the first
    tensor([[0.],
            [1.],
            [0.]])
    """

    k: int

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """(M, B) -> (M, B) of 0 and 1."""
        return top_k(-regret, self.k, dim=0).to(regret.dtype)


@dataclass(frozen=True)
class Relaxed:
    """The winners take 1 - eps, the others share what they gave up: relaxed WTA, Rupprecht et al. 2017.

    Published for k = 1; for more winners the others get k eps / (M - k) each, so that the weights sum to k.

    >>> Relaxed(1, eps=0.1)(torch.tensor([[0.3], [0.1], [0.2]]), State())
    tensor([[0.0500],
            [0.9000],
            [0.0500]])
    """

    k: int
    eps: float = 0.05

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """(M, B) -> (M, B)."""
        won = TopK(self.k)(regret, state)
        if self.k == len(regret):
            return won
        return torch.where(won > 0, 1 - self.eps, self.k * self.eps / (len(regret) - self.k)).to(regret.dtype)


@dataclass(frozen=True)
class Evolving:
    """The best n take it, n falling from M by halves to k in equal stages: evolving WTA, Makansi et al. 2019.

    >>> [int(Evolving(1)(torch.rand(5, 1), State(epoch, 6)).sum()) for epoch in range(1, 7)]
    [5, 5, 2, 2, 1, 1]
    """

    k: int

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """(M, B) -> (M, B) of 0 and 1."""
        stages, (epoch, epochs) = self._stages(len(regret)), state.schedule()
        return TopK(stages[min((epoch - 1) * len(stages) // epochs, len(stages) - 1)])(regret, state)

    def schedule_end(self, epochs: int, members: int) -> int:
        """The epochs before the last stage."""
        stages = len(self._stages(members))
        return -(-(stages - 1) * epochs // stages)

    def _stages(self, members: int) -> list[int]:
        stages = [members]
        while stages[-1] > self.k:
            stages.append(max(stages[-1] // 2, self.k))
        return stages


@dataclass(frozen=True)
class Annealed:
    """softmax(-regret / T) with a falling temperature T: annealed MCL, Perera et al. 2024.

    T = start * decay ** (epoch - 1), and the hard choice below `hard_below`. Without a `decay` per epoch, T falls to
    `hard_below` over the duration `cooling`, so that the choice is hard after it whatever the number of epochs [I]; the
    published decay is 0.95, in schedules of hundreds of epochs. Published for k = 1; for more, the weights of least KL
    divergence from the softmax among those in [0, 1] that sum to k: min(1, c * softmax) for the right c.

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
        """The temperature in an epoch; 0 once the choice is hard.

        >>> [round(Annealed(1).temperature(State(epoch, 10)), 4) for epoch in (1, 5, 8, 9)]
        [0.5, 0.0158, 0.0012, 0]
        """
        epoch = state.at_epoch()
        if self.decay is not None:
            now = self.start * self.decay ** (epoch - 1)
            return now if now >= self.hard_below else 0
        cooling = state.epochs_in(self.cooling, "cooling")
        if epoch > cooling:
            return 0
        return self.start * min(self.hard_below / self.start, 1) ** ((epoch - 1) / cooling)

    def schedule_end(self, epochs: int, members: int) -> int:
        """The epochs before the choice is hard; all of them where a decay per epoch is too slow."""
        return sum(self.temperature(State(epoch, epochs)) > 0 for epoch in range(1, epochs + 1))

    def __call__(self, regret: Tensor, state: State) -> Tensor:
        """(M, B) -> (M, B)."""
        temperature = self.temperature(state)
        if not temperature or self.k >= len(regret):
            return TopK(self.k)(regret, state)
        scores = (-regret.detach() / temperature).log_softmax(0)
        falling = scores.sort(0, descending=True).values
        # With the j best capped at 1, the others share k - j: log c_j. The first j that caps no one else is the answer.
        left = torch.arange(self.k, 0, -1, device=regret.device, dtype=regret.dtype)[:, None]
        log_c = left.log() - falling.flip(0).logcumsumexp(0).flip(0)[: self.k]
        fits = (log_c + falling[: self.k] <= 0).to(torch.uint8)
        fits[-1] = 1  # always true but for rounding
        return (scores + log_c.gather(0, fits.argmax(0, keepdim=True))).clamp_max(0).exp()


def top_k(scores: Tensor, k: int, *, dim: int) -> Tensor:
    """The k highest along `dim` as True; of equals, the first.

    >>> top_k(torch.tensor([[3, 7, 7], [0, 0, 0]]), 1, dim=1)
    tensor([[False,  True, False],
            [ True, False, False]])
    """
    if not 1 <= k <= scores.shape[dim]:
        raise UsageError(f"Expected 1 <= k <= {scores.shape[dim]} members, got k={k}.")
    order = scores.argsort(dim=dim, descending=True, stable=True).narrow(dim, 0, k)
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(dim, order, True)


def balanced(counts: Tensor, k: int) -> Tensor:
    """k members a class, every member the same number of classes to within one, keeping the most counts possible.

    A transportation problem: its constraint matrix is totally unimodular, so the linear program's vertex is integral.
    Not in the paper, whose row-wise top-k may leave a member without a class.

    >>> balanced(torch.tensor([[9, 1], [8, 3], [7, 0], [6, 0]]), 1).int()
    tensor([[1, 0],
            [0, 1],
            [1, 0],
            [0, 1]], dtype=torch.int32)
    """
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    classes, members = counts.shape
    if not 1 <= k <= members:
        raise UsageError(f"Expected 1 <= k <= {members} members, got k={k}.")
    least, most = classes * k // members, -(-classes * k // members)
    of_class = kron(eye_array(classes), torch.ones(1, members).numpy())
    of_member = kron(torch.ones(1, classes).numpy(), eye_array(members))
    solution = linprog(
        -counts.cpu().double().numpy().ravel(),
        A_eq=of_class.tocsr(),
        b_eq=[k] * classes,
        A_ub=vstack([of_member, -of_member]).tocsr(),
        b_ub=[most] * members + [-least] * members,
        bounds=(0, 1),
        method="highs-ds",
    )
    return torch.from_numpy(solution.x.reshape(classes, members) > 0.5).to(counts.device)

"""Costs of the ensemble as a whole, beside the one equation.

A joint cost is any callable (opinions, target (B, …), weights (M, B), state) -> scalar; `state.mean` averages over
examples as they are weighted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl._utils.durations import Duration
from torchmcl.errors import UsageError
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.state import State
from torchmcl.tasks.labels import cross_entropy

Joint = Callable[[EnsembleOutput, Tensor, Tensor, State], Tensor]


@dataclass(frozen=True)
class Margin:
    """weight * max(0, margin - P(y) + max_{c != y} P(c)), P = sum_m g_m p_m: vMCL's, a reconstruction.

    Kim et al. 2022 say only that Tian et al. 2019 set a fixed margin between the aggregated probability of the truth
    and of the others.

    >>> sure = EnsembleOutput(torch.tensor([[[0.0, 99.0]]]), gate=torch.ones(1, 1))
    >>> Margin(1.0, margin=0.5)(sure, torch.tensor([1]), torch.ones(1, 1), State())
    tensor(0.)
    """

    weight: float
    margin: float

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """-> scalar."""
        if target.is_floating_point():
            raise UsageError("Expected integer targets for the margin of vMCL, got soft ones. Use another method.")
        together = output.weighted(output.logits.softmax(2))
        truth = together.gather(1, target[:, None])[:, 0]
        others = together.scatter(1, target[:, None], -torch.inf).amax(1)
        return self.weight * state.mean((self.margin - truth + others).clamp_min(0))


@dataclass(frozen=True)
class Choice:
    """weight * CE(w / K, g): vMCL's choice network learns who takes what, a reconstruction.

    >>> undecided = EnsembleOutput(torch.zeros(2, 1, 3), gate=torch.full((2, 1), 0.5))
    >>> Choice(1.0)(undecided, torch.tensor([1]), torch.tensor([[1.0], [0.0]]), State())
    tensor(0.6931)
    """

    weight: float

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """-> scalar."""
        gate = output.require_gate()
        # A weight that has underflowed to 0 costs much, not infinitely much.
        log_gate = gate.clamp_min(torch.finfo(gate.dtype).tiny).log()
        return self.weight * -state.mean((weights / weights.sum(0) * log_gate).sum(0))


@dataclass(frozen=True)
class Similarity:
    """weight / (M (M - 1)) sum_{m != n} p_m . p_n, how much members say the same: EMADNN, inferred.

    `bounded=False` is the published sign and form as inferred, -H(p_m, p_n) in place of p_m . p_n: it has no minimum.

    >>> alike = EnsembleOutput(torch.tensor([[[0.0, 99.0]], [[0.0, 99.0]]]))
    >>> Similarity(0.1)(alike, torch.tensor([1]), torch.ones(2, 1), State())
    tensor(0.1000)
    """

    weight: float
    bounded: bool = True

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """-> scalar."""
        p = output.logits.softmax(2)
        other = p if self.bounded else output.logits.log_softmax(2)
        # The sum over pairs m != n is the product of sums less the pairs m = n: linear in M.
        pairs = (p.sum(0) * other.sum(0)).sum(1) - (p * other).sum(2).sum(0)
        return self.weight / max(len(p) * (len(p) - 1), 1) * state.mean(pairs)


@dataclass(frozen=True)
class GatedTeacher:
    """CE(z_e) + ramp sum_m T^2 KL(softmax(z_e / T) || softmax(z_m / T)), z_e = sum_m g_m z_m: ONE, Lan et al. 2018.

    The teacher z_e carries no gradient in the second term; ramp = exp(-5 (1 - epoch / rampup)^2) up to `rampup`.
    """

    temperature: float
    rampup: Duration

    def ramp(self, state: State) -> float:
        """The weight of the teacher in an epoch."""
        return exp(-5 * (1 - min(state.at_epoch() / self._rampup(state), 1)) ** 2)

    def schedule_end(self, epochs: int, members: int) -> int:
        """The epochs before the ramp's end."""
        return self._rampup(State(1, epochs)) - 1

    def _rampup(self, state: State) -> int:
        return state.epochs_in(self.rampup, "rampup", remaining=0)

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """-> scalar."""
        together = output.weighted(output.logits)
        own = state.mean(cross_entropy(together[None], target, state)[0])
        return own + self.ramp(state) * _distil(together, output.logits, self.temperature, state)


@dataclass(frozen=True)
class BestTeacher:
    """sum_m T^2 KL(softmax(t / T) || softmax(z_m / T)): KDCL-Naive, Guo et al. 2020.

    t are the logits of the member of least loss on the example, without gradient.
    """

    temperature: float

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """-> scalar."""
        best = cross_entropy(output.logits, target, state).argmin(0)
        teacher = output.logits[best, torch.arange(len(best), device=best.device)]
        return _distil(teacher, output.logits, self.temperature, state)


def _distil(teacher: Tensor, logits: Tensor, temperature: float, state: State) -> Tensor:
    """sum_m T^2 KL(softmax(t / T) || softmax(z_m / T)), mean over examples and pixels; t (B, C, …) without gradient."""
    target = (teacher.detach() / temperature).log_softmax(1).expand_as(logits)
    student = (logits / temperature).log_softmax(2)
    divergence = F.kl_div(student, target, reduction="none", log_target=True)
    return temperature**2 * state.mean(divergence.sum(2).sum(0))

"""Joint costs: costs of the ensemble as a whole, which an objective adds to its loss.

A joint cost (`structures.Joint`) is any callable (output, target (B, …), weights (M, B), state) -> scalar. Use
`state.mean` to average over examples with their sample weights.
"""

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


@dataclass(frozen=True)
class Margin:
    """The margin loss of vMCL, weight * max(0, margin - P(y) + max_{c != y} P(c)) with P = sum_m g_m p_m.

    This is a reconstruction: Kim et al. 2022 only mention that Tian et al. 2019 use a fixed margin between the
    aggregated probabilities of the target and of other classes.

    >>> certain = EnsembleOutput(torch.tensor([[[0.0, 99.0]]]), gate=torch.ones(1, 1))
    >>> Margin(1.0, margin=0.5)(certain, torch.tensor([1]), torch.ones(1, 1), State())
    tensor(0.)
    """

    weight: float
    margin: float

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """Return the cost of a batch, a scalar."""
        if target.is_floating_point():
            raise UsageError("vMCL does not support soft targets. Use integer targets or another method.")
        combined = output.weighted(output.logits.softmax(2))
        correct = combined.gather(1, target[:, None])[:, 0]
        others = combined.scatter(1, target[:, None], -torch.inf).amax(1)
        return self.weight * state.mean((self.margin - correct + others).clamp_min(0))


@dataclass(frozen=True)
class Choice:
    """The loss of vMCL's choice network, weight * CE(w / k, g): the gate learns the assignment (a reconstruction).

    >>> undecided = EnsembleOutput(torch.zeros(2, 1, 3), gate=torch.full((2, 1), 0.5))
    >>> Choice(1.0)(undecided, torch.tensor([1]), torch.tensor([[1.0], [0.0]]), State())
    tensor(0.6931)
    """

    weight: float

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """Return the cost of a batch, a scalar."""
        gate = output.require_gate()
        # The clamp keeps the cost finite if a gate underflows to 0.
        log_gate = gate.clamp_min(torch.finfo(gate.dtype).tiny).log()
        return self.weight * -state.mean((weights / weights.sum(0) * log_gate).sum(0))


@dataclass(frozen=True)
class Similarity:
    """The similarity of members in EMADNN, weight / (M (M - 1)) sum_{m != n} p_m . p_n [I].

    With `bounded=False`, the negative cross-entropy -H(p_m, p_n) replaces p_m . p_n. We infer that the paper uses this
    form, which has no minimum.

    >>> equal = EnsembleOutput(torch.tensor([[[0.0, 99.0]], [[0.0, 99.0]]]))
    >>> Similarity(0.1)(equal, torch.tensor([1]), torch.ones(2, 1), State())
    tensor(0.1000)
    """

    weight: float
    bounded: bool = True

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """Return the cost of a batch, a scalar."""
        p = output.logits.softmax(2)
        other = p if self.bounded else output.logits.log_softmax(2)
        # The product of sums minus the pairs m = n is the sum over pairs m != n, computed in time linear in M.
        pairs = (p.sum(0) * other.sum(0)).sum(1) - (p * other).sum(2).sum(0)
        return self.weight / max(len(p) * (len(p) - 1), 1) * state.mean(pairs)


@dataclass(frozen=True)
class GatedTeacher:
    """The loss of ONE, Lan et al. 2018: members learn from the gated sum of their logits, z_e = sum_m g_m z_m.

    The loss is CE(z_e) + ramp sum_m T^2 KL(softmax(z_e / T) || softmax(z_m / T)). The teacher z_e carries no gradient
    in the second term. The factor ramp is exp(-5 (1 - epoch / rampup)^2) up to the epoch `rampup` and 1 afterwards,
    with epochs counted from `first_epoch`.
    """

    temperature: float
    rampup: Duration
    first_epoch: int = 1

    def ramp(self, state: State) -> float:
        """Return the weight of the second term in an epoch."""
        epoch = state.at_epoch() - 1 + self.first_epoch
        return exp(-5 * (1 - min(epoch / self._rampup(state), 1)) ** 2)

    def schedule_end(self, epochs: int, members: int) -> int:
        """Return the number of epochs before the end of the ramp."""
        return self._rampup(State(1, epochs)) - self.first_epoch

    def _rampup(self, state: State) -> int:
        return state.epochs_in(self.rampup, "rampup", remaining=0)

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """Return the cost of a batch, a scalar."""
        teacher = output.weighted(output.logits)
        own = state.mean(cross_entropy(teacher[None], target, state)[0])
        return own + self.ramp(state) * _distil(teacher, output.logits, self.temperature, state)


@dataclass(frozen=True)
class BestTeacher:
    """The loss of KDCL-Naive, Guo et al. 2020: sum_m T^2 KL(softmax(t / T) || softmax(z_m / T)).

    The teacher's logits t are those of the member with the lowest loss on the example. They carry no gradient.
    """

    temperature: float

    def __call__(self, output: EnsembleOutput, target: Tensor, weights: Tensor, state: State) -> Tensor:
        """Return the cost of a batch, a scalar."""
        best = cross_entropy(output.logits, target, state).argmin(0)
        teacher = output.logits[best, torch.arange(len(best), device=best.device)]
        return _distil(teacher, output.logits, self.temperature, state)


def _distil(teacher: Tensor, logits: Tensor, temperature: float, state: State) -> Tensor:
    """Compute the mean over examples of sum_m T^2 KL(softmax(t / T) || softmax(z_m / T)) for a teacher t (B, C, …)."""
    target = (teacher.detach() / temperature).log_softmax(1).expand_as(logits)
    student = (logits / temperature).log_softmax(2)
    divergence = F.kl_div(student, target, reduction="none", log_target=True)
    return temperature**2 * state.mean(divergence.sum(2).sum(0))

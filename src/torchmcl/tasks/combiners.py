"""Combiners: functions from the members' outputs (M, B, C, …) to the ensemble's probabilities (B, C, …)."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl.structures.output import EnsembleOutput

Combiner = Callable[[EnsembleOutput], Tensor]


def mean(output: EnsembleOutput | Tensor) -> Tensor:
    """Return the mean of the members' probabilities, 1/M sum_m p_m: (M, B, C, …) -> (B, C, …).

    The example below is the one for CMCL in section 3.1 of Kim et al. 2022.

    >>> mean(torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log())
    tensor([[0.2500, 0.7500]])
    """
    return EnsembleOutput.of(output).logits.softmax(2).mean(0)


def drop_auxiliary(output: EnsembleOutput | Tensor) -> Tensor:
    """Return the members' summed probabilities of the real classes, normalised: (M, B, C + 1, …) -> (B, C, …).

    Implements section 3.1 of Kim et al. 2022; the example below is from the paper. The sum over members is
    normalised, but each member's part is not, so that a member that predicts the auxiliary class has little influence.
    Computing with logarithms keeps the result accurate even if all members are nearly certain of the auxiliary class.

    >>> drop_auxiliary(torch.tensor([[[0.0, 0.0, 1.0]], [[0.0, 1.0, 0.0]]]).log())
    tensor([[0., 1.]])
    """
    logits = EnsembleOutput.of(output).logits
    return logits.log_softmax(2)[:, :, :-1].logsumexp(0).softmax(1)


def gated(output: EnsembleOutput) -> Tensor:
    """Return the probabilities weighted by the gate, sum_m g_m p_m, as in vMCL: (M, B, C, …) -> (B, C, …).

    >>> gated(EnsembleOutput(torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log(), gate=torch.tensor([[0.2], [0.8]])))
    tensor([[0.1000, 0.9000]])
    """
    output = EnsembleOutput.of(output)
    return output.weighted(output.logits.softmax(2))


def gated_logits(output: EnsembleOutput) -> Tensor:
    """Return the softmax of the gated sum of logits, softmax(sum_m g_m z_m), as in ONE: (M, B, C, …) -> (B, C, …).

    >>> gated_logits(EnsembleOutput(torch.tensor([[[0.0, 0.0]], [[0.0, 2.0]]]), gate=torch.tensor([[0.5], [0.5]])))
    tensor([[0.2689, 0.7311]])
    """
    output = EnsembleOutput.of(output)
    return output.weighted(output.logits).softmax(1)


def vote(output: EnsembleOutput | Tensor, *, auxiliary: bool = False) -> Tensor:
    """Return the fraction of members that predict each class: (M, B, C, …) -> (B, C, …).

    With `auxiliary`, members that predict the auxiliary class abstain. If all abstain, `drop_auxiliary` is used.

    >>> vote(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([[0.6667, 0.3333]])
    """
    logits = EnsembleOutput.of(output).logits
    votes = torch.zeros_like(logits).scatter_(2, logits.argmax(2, keepdim=True), 1).sum(0)
    if not auxiliary:
        return votes / len(logits)
    votes = votes[:, :-1]
    total = votes.sum(1, keepdim=True)
    return torch.where(total > 0, votes / total.clamp_min(1), drop_auxiliary(logits))


def weighted_mean(hypotheses: Tensor, scores: Tensor) -> Tensor:
    """Return the mean of hypotheses, weighted by their scores, sum_m s_m f_m: (M, B, D), (M, B) -> (B, D).

    >>> weighted_mean(torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([[0.25], [0.75]]))
    tensor([[3.]])
    """
    return (scores.unsqueeze(2) * hypotheses).sum(0)


def most_probable(hypotheses: Tensor, scores: Tensor) -> Tensor:
    """Return the hypothesis with the highest score: (M, B, D), (M, B) -> (B, D). Ties go to the first member.

    >>> most_probable(torch.tensor([[[0.0]], [[4.0]]]), torch.tensor([[0.25], [0.75]]))
    tensor([[4.]])
    """
    return hypotheses[scores.argmax(0), torch.arange(hypotheses.shape[1], device=scores.device)]

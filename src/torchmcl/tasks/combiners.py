"""EnsembleOutput -> the ensemble's probabilities (B, C, …), without the auxiliary class."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchmcl.structures.output import EnsembleOutput

Combiner = Callable[[EnsembleOutput], Tensor]


def mean(output: EnsembleOutput | Tensor) -> Tensor:
    """1/M sum_m p_m.

    CMCL's side of the worked example in section 3.1 of Kim et al. 2022: members [1/2, 1/2] and [0, 1].

    >>> mean(torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log())
    tensor([[0.2500, 0.7500]])
    """
    return EnsembleOutput.of(output).logits.softmax(2).mean(0)


def drop_auxiliary(output: EnsembleOutput | Tensor) -> Tensor:
    """sum_m p_m(c), the auxiliary class dropped, normalised once: section 3.1 of Kim et al. 2022.

    Members are not normalised one by one, so that who says "not mine" is not heard. Computed from logarithms: right
    even where every member is all but certain that it is not theirs.

    The worked example of that section: members [0, 0, 1] and [0, 1, 0].

    >>> drop_auxiliary(torch.tensor([[[0.0, 0.0, 1.0]], [[0.0, 1.0, 0.0]]]).log())
    tensor([[0., 1.]])
    """
    logits = EnsembleOutput.of(output).logits
    return logits.log_softmax(2)[:, :, :-1].logsumexp(0).softmax(1)


def gated(output: EnsembleOutput) -> Tensor:
    """sum_m g_m p_m: vMCL.

    >>> gated(EnsembleOutput(torch.tensor([[[0.5, 0.5]], [[0.0, 1.0]]]).log(), gate=torch.tensor([[0.2], [0.8]])))
    tensor([[0.1000, 0.9000]])
    """
    output = EnsembleOutput.of(output)
    return output.weighted(output.logits.softmax(2))


def gated_logits(output: EnsembleOutput) -> Tensor:
    """softmax(sum_m g_m z_m): ONE.

    >>> gated_logits(EnsembleOutput(torch.tensor([[[0.0, 0.0]], [[0.0, 2.0]]]), gate=torch.tensor([[0.5], [0.5]])))
    tensor([[0.2689, 0.7311]])
    """
    output = EnsembleOutput.of(output)
    return output.weighted(output.logits).softmax(1)


def vote(output: EnsembleOutput | Tensor, *, auxiliary: bool = False) -> Tensor:
    """The part of the members whose first choice is c. With `auxiliary`, who chooses it abstains.

    Where everyone abstains, the answer is `drop_auxiliary`'s.

    >>> vote(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([[0.6667, 0.3333]])
    """
    logits = EnsembleOutput.of(output).logits
    ballots = torch.zeros_like(logits).scatter_(2, logits.argmax(2, keepdim=True), 1).sum(0)
    if not auxiliary:
        return ballots / len(logits)
    ballots = ballots[:, :-1]
    votes = ballots.sum(1, keepdim=True)
    return torch.where(votes > 0, ballots / votes.clamp_min(1), drop_auxiliary(logits))

"""Scores: one output per member that estimates how probable it is that this member's hypothesis is the best one.

Winner-takes-all training yields hypotheses without probabilities. A score is trained on the winners and does not
change the assignment.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl.assignment import TopK, top_k
from torchmcl.errors import UsageError, known_name
from torchmcl.structures.output import describe, per_example
from torchmcl.structures.state import State

KINDS = ("bce", "ce", "mixture")


def score_loss(
    scores: Tensor, losses: Tensor, kind: str = "bce", *, negatives: int | None = None, mask: Tensor | None = None
) -> Tensor:
    """Compute the loss of the scores s for each example, given the losses l of the hypotheses.

    - "bce": the binary cross-entropy of sigmoid(s_m) and "member m won a target", averaged over members, as in rMCL
      (Letzelter et al. 2023) and TimeMCL (Cortes et al. 2025).
    - "ce": the cross-entropy of softmax(s) and the winner, as in MTP (Cui et al. 2019). With several targets, the
      share of the targets that each member won replaces the winner.
    - "mixture": -log sum_m softmax(s)_m exp(-l_m), as in QCNet (Zhou et al. 2023). The losses must be negative
      log-likelihoods.

    The winner is the member with the lowest loss; ties go to the first member. The losses carry no gradient.

    Args:
        scores: The scores before the sigmoid or softmax, (M, B).
        losses: The loss of each hypothesis, (M, B), or (M, B, T) for several targets per example.
        kind: The loss of the scores.
        negatives: The number of members without a target that enter "bce", drawn at random with PyTorch's global
            generator (3 in rMCL); by default, all members do.
        mask: Which targets are valid, bool (B, T); by default, all.

    Returns:
        One value per example, (B,).

    Raises:
        UsageError: If the kind is unknown, the shapes do not match or `negatives` is less than 1.

    >>> score_loss(torch.zeros(4, 1), torch.tensor([[3.0], [1.0], [2.0], [5.0]]), "ce")
    tensor([1.3863])
    """
    known_name("kind of score", kind, KINDS)
    tensors = isinstance(scores, Tensor) and isinstance(losses, Tensor)
    if not tensors or losses.shape[:2] != scores.shape or not 2 <= losses.ndim <= 3:
        raise UsageError(
            f"Expected scores (M, B) and losses (M, B) or (M, B, T), got {describe(scores)} and {describe(losses)}."
        )
    check_negatives(negatives)
    losses = losses.detach()
    if kind == "mixture":
        log_weight = scores.log_softmax(0).reshape(*scores.shape, *[1] * (losses.ndim - 2))
        return per_example(-(log_weight - losses).logsumexp(0), mask)
    won = TopK(1)(losses, State()).to(scores.dtype)  # (M, B) or (M, B, T)
    if kind == "ce":
        share = torch.stack([per_example(one, mask) for one in won])
        return -(share * scores.log_softmax(0)).sum(0)
    if won.ndim == 3:
        won = (won if mask is None else won * mask).amax(2)
    each = F.binary_cross_entropy_with_logits(scores, won, reduction="none")
    if negatives is None:
        return each.mean(0)
    order = torch.rand_like(scores).masked_fill(won > 0, -1)
    counted = top_k(order, min(negatives, len(scores)), dim=0) | (won > 0)
    return (each * counted).sum(0) / counted.sum(0)


def score_probabilities(scores: Tensor, kind: str = "bce") -> Tensor:
    """Return the probability of each hypothesis, (M, B) -> (M, B): softmax(s), or sigmoid(s), normalised, for "bce".

    >>> score_probabilities(torch.tensor([[0.0], [torch.inf]])).flatten()
    tensor([0.3333, 0.6667])
    """
    return (F.logsigmoid(scores) if kind == "bce" else scores).softmax(0)


def check_negatives(negatives: int | None) -> None:
    """Raise UsageError if a number of members without a target is less than 1."""
    if negatives is not None and negatives < 1:
        raise UsageError(f"Expected negatives >= 1 or None, got {negatives}.")

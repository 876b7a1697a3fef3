"""Scores that detect unseen (out-of-distribution) data. **A higher score always indicates unseen data.**

Each function takes the `MemberScores` of a batch and returns one score per example (B,), or in segmentation one score
per pixel (B, …).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.methods import Method
from torchmcl.structures.output import EnsembleOutput, per_example
from torchmcl.tasks.combiners import vote


@dataclass(frozen=True)
class MemberScores:
    """The members' outputs for a batch, converted to the quantities from which scores are computed.

    For a method with an auxiliary class, `members` are p(c) / (1 - p(auxiliary)). The claim of a member on an example
    is 1 - p(auxiliary). The member's weight is w_m = (1 - p_m(auxiliary)) / sum_n (1 - p_n(auxiliary)), so that AMCL's
    combined probabilities are exactly sum_m w_m p_m. For other methods, the weights are those of the gate, or 1/M.

    Args:
        logits: logits of the real classes (M, B, C, …)
        members: probabilities of the real classes (M, B, C, …)
        auxiliary: probability of the auxiliary class (M, B, …), or None if the method has none
        weights: weight of each member in the combined probabilities (M, B, …); the weights sum to 1
        combined: combined probabilities (B, C, …)
        k: number of members that take each example
    """

    logits: Tensor
    members: Tensor
    auxiliary: Tensor | None
    weights: Tensor
    combined: Tensor
    k: int = 1

    @classmethod
    def of(cls, output: EnsembleOutput | Tensor, combined: Tensor, method: Method) -> "MemberScores":
        """Create `MemberScores` from members' outputs (M, B, C or C + 1, …) and combined probabilities (B, C, …)."""
        logits, gate = EnsembleOutput.of(output)
        real = logits[:, :, : method.classes]
        auxiliary, weights = None, torch.ones_like(logits[:, :, 0])
        if gate is not None:
            weights = weights * gate.reshape(*gate.shape, *[1] * (logits.ndim - 3))
        if method.auxiliary:
            auxiliary = logits.log_softmax(2)[:, :, -1].exp()
            # The softmax of logarithms stays finite even if all members are almost certain of the auxiliary class.
            weights = (real.logsumexp(2) - logits.logsumexp(2)).softmax(0)
        return cls(real, real.softmax(2), auxiliary, weights / weights.sum(0), combined, method.k)

    @classmethod
    def cat(cls, parts: Sequence["MemberScores"]) -> "MemberScores":
        """Concatenate the outputs for successive batches, on the CPU."""
        columns: dict[str, Any] = {"auxiliary": None, "k": parts[0].k}
        for name in ("logits", "members", "auxiliary", "weights", "combined"):
            values = [getattr(part, name) for part in parts]
            if values[0] is not None:
                columns[name] = torch.cat([value.cpu() for value in values], dim=0 if name == "combined" else 1)
        return cls(**columns)


def smallest_auxiliary(scores: MemberScores) -> Tensor:
    """Return min_m p_m(auxiliary), which is high if no member claims the example.

    With groups of classes as members, this is the score of MOS (Huang & Li 2021).
    """
    return _auxiliary(scores).amin(0)


def kth_auxiliary(scores: MemberScores) -> Tensor:
    """Return the k-th smallest p_m(auxiliary), which is high if fewer than k members claim the example."""
    return _auxiliary(scores).sort(0).values[scores.k - 1]


def mean_auxiliary(scores: MemberScores) -> Tensor:
    """Return the mean 1/M sum_m p_m(auxiliary)."""
    return _auxiliary(scores).mean(0)


def max_probability(scores: MemberScores) -> Tensor:
    """Return 1 - max_c p(c) of the combined probabilities (Hendrycks & Gimpel 2017)."""
    return 1 - scores.combined.amax(1)


def max_logit(scores: MemberScores) -> Tensor:
    """Return the members' mean of -max_c z_m(c) over the real classes (Hendrycks et al. 2022)."""
    return -scores.logits.amax(2).mean(0)


def entropy(scores: MemberScores) -> Tensor:
    """Return the entropy H(p) = -sum_c p(c) log p(c) of the combined probabilities."""
    return torch.special.entr(scores.combined).sum(1)


def mutual_information(scores: MemberScores) -> Tensor:
    """Return H(sum_m w_m p_m) - sum_m w_m H(p_m), which is high if members with a large weight disagree.

    For an independent ensemble (w = 1/M), this is the score of Houlsby et al. 2011 and Lakshminarayanan et al. 2017.
    """
    mixture = (scores.weights[:, :, None] * scores.members).sum(0)
    mean_entropy = (scores.weights * torch.special.entr(scores.members).sum(2)).sum(0)
    return torch.special.entr(mixture).sum(1) - mean_entropy


def variation_ratio(scores: MemberScores) -> Tensor:
    """Return the fraction of members that do not predict the most frequent of the real classes (Freeman 1965)."""
    return 1 - vote(scores.logits).amax(1)


def energy(scores: MemberScores) -> Tensor:
    """Return the members' mean energy over the real classes, -1/M sum_m log sum_c exp z_m(c) (Liu et al. 2020)."""
    return -scores.logits.logsumexp(2).mean(0)


def claim_energy(scores: MemberScores) -> Tensor:
    """Return the lowest energy of a member, -max_m log sum_c exp z_m(c) over the real classes.

    The energy of the member that claims the example most. In `energy`, members that leave the example count as much.
    """
    return -scores.logits.logsumexp(2).amax(0)


SCORES: dict[str, Callable[[MemberScores], Tensor]] = {
    score.__name__: score
    for score in (
        smallest_auxiliary,
        kth_auxiliary,
        mean_auxiliary,
        max_probability,
        max_logit,
        entropy,
        mutual_information,
        variation_ratio,
        energy,
        claim_energy,
    )
}
NAMES = tuple(SCORES)


def compute(scores: MemberScores) -> dict[str, Tensor]:
    """Compute all scores that the method supports, one per example (B,), averaged over pixels in segmentation.

    >>> from torchmcl import methods
    >>> amcl = methods.build("amcl", members=2, classes=2)
    >>> first = torch.tensor([[0.89, 0.01, 0.1], [0.1, 0.1, 0.8]])  # member 0 claims only the first example
    >>> second = torch.tensor([[0.01, 0.01, 0.98], [0.1, 0.1, 0.8]])
    >>> output = EnsembleOutput(torch.stack([first, second]).log())
    >>> scores = compute(MemberScores.of(output, amcl.combine(output), amcl))
    >>> scores["smallest_auxiliary"], scores["entropy"]
    (tensor([0.1000, 0.8000]), tensor([0.1047, 0.6931]))
    """
    return {
        name: per_example(score(scores))
        for name, score in SCORES.items()
        if scores.auxiliary is not None or not name.endswith("auxiliary")
    }


def _auxiliary(scores: MemberScores) -> Tensor:
    if scores.auxiliary is None:
        raise UsageError("Auxiliary scores require a method with an auxiliary class, such as amcl.")
    return scores.auxiliary

"""How foreign an example looks to an ensemble. One sign for all: **a higher score is more foreign**.

Each function takes `MemberScores`, what the members say of a batch; in segmentation a score is (B, …), one a pixel.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.methods import Method
from torchmcl.structures.output import EnsembleOutput, per_example


@dataclass(frozen=True)
class MemberScores:
    """What scores are made of.

    `logits` (M, B, C, …) and `members`, their probabilities, of the real classes; `auxiliary` (M, B, …), how sure each
    member is that the example is not its own, or None; `weights` (M, B, …), what each member counts in the combined
    answer, summing to 1; `combined` (B, C, …), that answer; `k`, the members that take each example.

    Where a method has an auxiliary class, `members` are given that it is theirs, p(c) / (1 - p(auxiliary)), and a
    member counts as much as it claims, w_m = (1 - p_m(auxiliary)) / sum_n (1 - p_n(auxiliary)): the combined answer of
    AMCL is exactly sum_m w_m p_m. Elsewhere the weights are the gate, or 1/M.
    """

    logits: Tensor
    members: Tensor
    auxiliary: Tensor | None
    weights: Tensor
    combined: Tensor
    k: int = 1

    @classmethod
    def of(cls, output: EnsembleOutput | Tensor, combined: Tensor, method: Method) -> "MemberScores":
        """EnsembleOutput with logits (M, B, C or C + 1, …) and the combined answer (B, C, …) -> voices."""
        logits, gate = EnsembleOutput.of(output)
        real = logits[:, :, : method.classes]
        auxiliary = None
        weights = torch.ones_like(logits[:, :, 0]) if gate is None else _over_pixels(gate, logits)
        if method.auxiliary:
            auxiliary = logits.log_softmax(2)[:, :, -1].exp()
            # From logarithms: right even where every member is all but certain that it is not theirs.
            weights = (real.logsumexp(2) - logits.logsumexp(2)).softmax(0)
        return cls(real, real.softmax(2), auxiliary, weights / weights.sum(0), combined, method.k)


def smallest_auxiliary(scores: MemberScores) -> Tensor:
    """min_m p_m(auxiliary): whether nobody at all claims the example, (B, …)."""
    return _auxiliary(scores).amin(0)


def kth_auxiliary(scores: MemberScores) -> Tensor:
    """The k-th smallest p_m(auxiliary), where k members take each example: whether fewer than k claim it, (B, …)."""
    return _auxiliary(scores).sort(0).values[scores.k - 1]


def mean_auxiliary(scores: MemberScores) -> Tensor:
    """1/M sum_m p_m(auxiliary), (B, …)."""
    return _auxiliary(scores).mean(0)


def max_probability(scores: MemberScores) -> Tensor:
    """1 - max_c p(c) of the combined answer, (B, …): Hendrycks & Gimpel 2017."""
    return 1 - scores.combined.amax(1)


def entropy(scores: MemberScores) -> Tensor:
    """H(p) = -sum_c p(c) log p(c) of the combined answer, (B, …)."""
    return torch.special.entr(scores.combined).sum(1)


def mutual_information(scores: MemberScores) -> Tensor:
    """H(sum_m w_m p_m) - sum_m w_m H(p_m), (B, …): how much members that have a say contradict each other.

    Of an independent ensemble, with w = 1/M, that of Houlsby et al. 2011 and Lakshminarayanan et al. 2017.
    """
    mixture = (scores.weights[:, :, None] * scores.members).sum(0)
    alone = (scores.weights * torch.special.entr(scores.members).sum(2)).sum(0)
    return torch.special.entr(mixture).sum(1) - alone


def energy(scores: MemberScores) -> Tensor:
    """-1/M sum_m log sum_c exp z_m(c) over the real classes, (B, …): Liu et al. 2020, the mean of the members'."""
    return -scores.logits.logsumexp(2).mean(0)


ALL: dict[str, Callable[[MemberScores], Tensor]] = {
    score.__name__: score
    for score in (
        smallest_auxiliary,
        kth_auxiliary,
        mean_auxiliary,
        max_probability,
        entropy,
        mutual_information,
        energy,
    )
}
NAMES = tuple(ALL)


def compute(scores: MemberScores) -> dict[str, Tensor]:
    """Every score that the method allows, one number an example, (B,); of pixels their mean.

    >>> from torchmcl import methods
    >>> amcl = methods.build("amcl", members=2, classes=2)
    >>> one = torch.tensor([[0.89, 0.01, 0.1], [0.1, 0.1, 0.8]])  # probabilities of the first example: mine; the second
    >>> two = torch.tensor([[0.01, 0.01, 0.98], [0.1, 0.1, 0.8]])
    >>> output = EnsembleOutput(torch.stack([one, two]).log())
    >>> found = compute(MemberScores.of(output, amcl.combine(output), amcl))
    >>> found["smallest_auxiliary"], found["entropy"]
    (tensor([0.1000, 0.8000]), tensor([0.1047, 0.6931]))
    """
    return {
        name: per_example(score(scores))
        for name, score in ALL.items()
        if scores.auxiliary is not None or not name.endswith("auxiliary")
    }


def _auxiliary(scores: MemberScores) -> Tensor:
    if scores.auxiliary is None:
        raise UsageError("Expected a method with an auxiliary class, such as amcl, got one without.")
    return scores.auxiliary


def _over_pixels(gate: Tensor, logits: Tensor) -> Tensor:
    return gate.reshape(*gate.shape, *[1] * (logits.ndim - 3)).expand(*gate.shape, *logits.shape[3:])

from typing import Any, final

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.metrics.shapes import check
from torchmcl.metrics.stateful import Average, MemberAverage, Total
from torchmcl.structures.output import to_float32


def disagreement(probabilities: Tensor) -> Tensor:
    """How often two members answer differently, mean over pairs of members and examples, (M, B, C) -> ().

    mean_B mean_{m<n} [argmax p_m != argmax p_n]; 0 for one member.

    >>> disagreement(torch.tensor([[[.9, .1]], [[.8, .2]], [[.3, .7]]]))  # 2 of 3 pairs
    tensor(0.6667)
    """
    return _disagreements(probabilities).mean()


def share(weights: Tensor) -> Tensor:
    """Share of the examples that each member takes, (M, B) -> (M,); they sum to K.

    mean_B w_m.

    >>> share(torch.tensor([[1., 1., 1., 0.], [0., 0., 0., 1.]]))
    tensor([0.7500, 0.2500])
    """
    return _weights(weights).mean(1)


def taken(weights: Tensor, group: Tensor, groups: int) -> Tensor:
    """What each member takes of each class, (M, B), (B,) -> (groups, M).

    counts[g, m] = sum_{b: group_b = g} w_mb.

    >>> taken(torch.tensor([[1., 0., 1.], [0., 1., 0.]]), torch.tensor([0, 1, 1]), groups=2)
    tensor([[1., 0.],
            [1., 1.]])
    """
    check("weights (M, B) and group (B,)", weights, group)
    weights = to_float32(weights).T
    return weights.new_zeros(groups, weights.shape[1]).index_add(0, group.long(), weights)


def purity(counts: Tensor, k: int = 1) -> Tensor:
    """Of all assignments, the part that went to the top k members of its class, (classes, M) -> ().

    sum_c (k largest of counts_c) / sum counts. 1 where every class has its own k members, k/M where each is spread
    evenly over all M, and nan where nothing has been assigned, so that a report before the first epoch does not fail.

    >>> purity(torch.tensor([[9., 1.], [0., 10.]])), purity(torch.zeros(2, 2))
    (tensor(0.9500), tensor(nan))
    """
    check("counts (classes, M)", counts)
    if not 1 <= k <= counts.shape[1]:
        raise UsageError(f"Expected 1 <= k <= {counts.shape[1]} members, got k={k}.")
    counts = to_float32(counts)
    return counts.topk(k, dim=1).values.sum() / counts.sum()


def _disagreements(probabilities: Tensor) -> Tensor:
    """Part of the pairs of members that differ on each example, (M, B, C) -> (B,).

    Counted by votes, not by pairs: v_c (v_c - 1) of the M (M - 1) ordered pairs agree on class c.
    """
    check("probabilities (M, B, C)", probabilities)
    M, _, C = probabilities.shape
    pairs = M * (M - 1)
    votes = torch.nn.functional.one_hot(probabilities.argmax(2), C).sum(0)
    return (pairs - (votes * (votes - 1)).sum(1)) / max(pairs, 1)


def _weights(weights: Tensor) -> Tensor:
    check("weights (M, B)", weights)
    return to_float32(weights)


@final
class Disagreement(Average):
    """`disagreement` over all batches.

    >>> metric = Disagreement()
    >>> metric.update(torch.tensor([[[.9, .1]], [[.8, .2]], [[.3, .7]]]))
    >>> metric.compute()
    tensor(0.6667)
    """

    higher_is_better = None  # members that differ are not yet members that are right

    def update(self, probabilities: Tensor) -> None:
        """Take in probabilities (M, B, C)."""
        self._average(_disagreements(probabilities))


@final
class Share(MemberAverage):
    """`share` over all batches, (M,).

    >>> metric = Share(members=2)
    >>> metric.update(torch.tensor([[1., 1., 1., 0.], [0., 0., 0., 1.]]))
    >>> metric.compute()
    tensor([0.7500, 0.2500])
    """

    higher_is_better = None  # even is better, and that is not one number

    def update(self, weights: Tensor) -> None:
        """Take in weights (M, B)."""
        self._average(_weights(weights))


@final
class Purity(Total):
    """`purity` of what was taken in all batches.

    >>> metric = Purity(classes=2, members=2)
    >>> metric.update(torch.tensor([[1., 0., 1.], [0., 1., 0.]]), torch.tensor([0, 1, 1]))
    >>> metric.compute()
    tensor(0.6667)
    """

    higher_is_better = True

    def __init__(self, classes: int, members: int, k: int = 1, **options: Any) -> None:
        super().__init__(classes, members, **options)
        self.k = k
        purity(self.total, k)  # refuses a wrong k now, not after an epoch

    def update(self, weights: Tensor, group: Tensor) -> None:
        """Take in weights (M, B), the class (B,) of each example."""
        self._add(taken(weights, group, len(self.total)))

    def compute(self) -> Tensor:
        """Purity of all assignments so far."""
        return purity(self.total, self.k).float()

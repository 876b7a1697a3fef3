from typing import Any, final

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import MeanMetric, SumMetric
from torchmcl.structures.output import to_float32


def disagreement(probabilities: Tensor) -> Tensor:
    """Compute the fraction of pairs of members that predict different classes, (M, B, C) -> a scalar between 0 and 1.

    The result is mean_B mean_{m<n} [argmax p_m != argmax p_n], or 0 for one member.

    >>> disagreement(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]]]))  # 2 of 3 pairs
    tensor(0.6667)
    """
    return _example_disagreement(probabilities).mean()


def share(weights: Tensor) -> Tensor:
    """Compute the share of the examples that each member takes, mean_B w_m: (M, B) -> (M,). The shares sum to K.

    >>> share(torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))
    tensor([0.7500, 0.2500])
    """
    return _as_weights(weights).mean(1)


def taken(weights: Tensor, group: Tensor, groups: int) -> Tensor:
    """Count the examples of each class that each member takes: counts[g, m] = sum_{b: group_b = g} w_mb.

    Args:
        weights: the assignment, (M, B)
        group: the class of each example, (B,)
        groups: the number of classes

    Returns:
        Counts, (groups, M).

    >>> taken(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1, 1]), groups=2)
    tensor([[1., 0.],
            [1., 1.]])
    """
    check_shapes("weights (M, B) and group (B,)", weights, group)
    weights = to_float32(weights).T
    return weights.new_zeros(groups, weights.shape[1]).index_add(0, group.long(), weights)


def purity(counts: Tensor, k: int = 1) -> Tensor:
    """Compute the fraction of assignments to the top k members of each class: sum_c (k largest counts_c) / sum(counts).

    Args:
        counts: the number of examples of each class that each member took, (classes, M)
        k: the number of members per class

    Returns:
        A scalar: 1 if at most k members take each class, k/M if all members take the same number of examples of each
        class, and nan if all counts are 0, as before the first epoch.

    Raises:
        UsageError: if k is not between 1 and M

    >>> purity(torch.tensor([[9.0, 1.0], [0.0, 10.0]])), purity(torch.zeros(2, 2))
    (tensor(0.9500), tensor(nan))
    """
    check_shapes("counts (classes, M)", counts)
    if not 1 <= k <= counts.shape[1]:
        raise UsageError(f"Expected 1 <= k <= {counts.shape[1]} members, got k={k}.")
    counts = to_float32(counts)
    return counts.topk(k, dim=1).values.sum() / counts.sum()


def _example_disagreement(probabilities: Tensor) -> Tensor:
    """Return the fraction of pairs of members that disagree on each example, (M, B, C) -> (B,)."""
    check_shapes("probabilities (M, B, C)", probabilities)
    M, _, C = probabilities.shape
    pairs = M * (M - 1)  # ordered pairs; if class c has v_c votes, v_c (v_c - 1) of the pairs agree on c
    votes = torch.nn.functional.one_hot(probabilities.argmax(2), C).sum(0)
    return (pairs - (votes * (votes - 1)).sum(1)) / max(pairs, 1)


def _as_weights(weights: Tensor) -> Tensor:
    check_shapes("weights (M, B)", weights)
    return to_float32(weights)


@final
class Disagreement(MeanMetric):
    """Compute `disagreement` over all batches.

    >>> metric = Disagreement()
    >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]]]))
    >>> metric.compute()
    tensor(0.6667)
    """

    higher_is_better = None  # members that disagree can all be wrong

    def update(self, probabilities: Tensor) -> None:
        """Add a batch of the members' probabilities, (M, B, C)."""
        self._add_values(_example_disagreement(probabilities))


@final
class Share(MeanMetric):
    """Compute `share` for M `members` over all batches.

    >>> metric = Share(members=2)
    >>> metric.update(torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]))
    >>> metric.compute()
    tensor([0.7500, 0.2500])
    """

    higher_is_better = None  # equal shares are better

    def __init__(self, members: int, **options: Any) -> None:
        super().__init__(members, **options)

    def update(self, weights: Tensor) -> None:
        """Add a batch of weights, (M, B)."""
        self._add_values(_as_weights(weights))


@final
class Purity(SumMetric):
    """Compute `purity` over all batches.

    Args:
        classes: the number of classes
        members: the number of members M
        k: the number of members per class

    Raises:
        UsageError: if k is not between 1 and M

    >>> metric = Purity(classes=2, members=2)
    >>> metric.update(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), torch.tensor([0, 1, 1]))
    >>> metric.compute()
    tensor(0.6667)
    """

    higher_is_better = True

    def __init__(self, classes: int, members: int, k: int = 1, **options: Any) -> None:
        super().__init__(classes, members, **options)
        self.k = k
        purity(self.total, k)  # raises UsageError for an invalid k before the first epoch

    def update(self, weights: Tensor, group: Tensor) -> None:
        """Add a batch: weights (M, B) and the class of each example (B,)."""
        self._add(taken(weights, group, len(self.total)))

    def compute(self) -> Tensor:
        """Return the purity of all assignments since the last reset."""
        return purity(self.total, self.k).float()

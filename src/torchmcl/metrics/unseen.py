"""Telling unseen data: outliers are the positive class, a higher score is more foreign."""

from typing import final

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

from torchmcl.metrics.shapes import check
from torchmcl.metrics.stateful import Whole

_SCORES = "inlier scores (B1,) and outlier scores (B2,)"


def auroc(inlier: Tensor, outlier: Tensor) -> Tensor:
    """Area under the receiver operating characteristic, scores (B1,), (B2,) -> ().

    P(outlier > inlier) + P(outlier = inlier) / 2 over all pairs.

    >>> auroc(torch.tensor([.1, .2]), torch.tensor([.2, .9]))  # 3 pairs in order, 1 tie
    tensor(0.8750)
    """
    return binary_auroc(*_ranked(inlier, outlier), validate_args=False)


def aupr(inlier: Tensor, outlier: Tensor) -> Tensor:
    """Area under precision over recall as average precision, scores (B1,), (B2,) -> ().

    sum_n (recall_n - recall_{n-1}) precision_n over the thresholds from the highest down.

    >>> aupr(torch.tensor([.1, .2]), torch.tensor([.2, .9]))  # 1/2 * 1 + 1/2 * 2/3
    tensor(0.8333)
    """
    return binary_average_precision(*_ranked(inlier, outlier), validate_args=False)


def fpr_at_95_tpr(inlier: Tensor, outlier: Tensor) -> Tensor:
    """Part of the inliers lost when at least 95% of the outliers are found, scores (B1,), (B2,) -> ().

    min {FPR(t): TPR(t) >= .95} over the scores as thresholds, nothing interpolated.

    >>> fpr_at_95_tpr(torch.tensor([.1, .2]), torch.tensor([.2, .9]))
    tensor(0.5000)
    """
    false_positives, true_positives, _ = binary_roc(*_ranked(inlier, outlier), validate_args=False)
    return false_positives[true_positives >= 0.95].amin()


def _ranked(inlier: Tensor, outlier: Tensor) -> tuple[Tensor, Tensor]:
    """All scores as ranks in [0, 1), ties kept, and whether each is an outlier, (B1 + B2,) each.

    torchmetrics passes scores outside [0, 1] through a sigmoid, after which 20 and 30 are a tie; ranks are not.
    """
    check(_SCORES, inlier, outlier)
    _, rank = torch.unique(torch.cat([inlier, outlier]), return_inverse=True)
    return rank.float() / len(rank), (torch.arange(len(rank), device=rank.device) >= len(inlier)).long()


class _Unseen(Whole):
    names = ("inlier", "outlier")

    def update(self, inlier: Tensor | None = None, outlier: Tensor | None = None) -> None:
        """Take in scores of inliers (B1,), of outliers (B2,), or of one kind: they seldom share a batch."""
        for name, scores in (("inlier", inlier), ("outlier", outlier)):
            if scores is not None:
                check(f"{name} scores (B,)", scores, empty=True)
                self._keep(name, scores)


@final
class AUROC(_Unseen):
    """`auroc` of all batches.

    >>> metric = AUROC()
    >>> metric.update(inlier=torch.tensor([.1, .2]))
    >>> metric.update(outlier=torch.tensor([.2, .9]))
    >>> metric.compute()
    tensor(0.8750)
    """

    higher_is_better = True
    function = staticmethod(auroc)


@final
class AUPR(_Unseen):
    """`aupr` of all batches.

    >>> metric = AUPR()
    >>> metric.update(torch.tensor([.1, .2]), torch.tensor([.2, .9]))
    >>> metric.compute()
    tensor(0.8333)
    """

    higher_is_better = True
    function = staticmethod(aupr)


@final
class FPR95(_Unseen):
    """`fpr_at_95_tpr` of all batches.

    >>> metric = FPR95()
    >>> metric.update(torch.tensor([.1, .2]), torch.tensor([.2, .9]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False
    function = staticmethod(fpr_at_95_tpr)

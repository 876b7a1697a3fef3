"""Metrics for detecting unseen data: outliers are the positive class and should have higher scores than inliers."""

from typing import final

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision, binary_roc

from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import CurveMetric


def auroc(inlier: Tensor, outlier: Tensor) -> Tensor:
    """Compute the area under the ROC curve: P(outlier > inlier) + P(outlier = inlier) / 2 over all pairs of scores.

    Args:
        inlier: the scores of inliers, (B1,)
        outlier: the scores of outliers, (B2,)

    Returns:
        A scalar between 0 and 1.

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))  # 3 ordered pairs, 1 tie
    tensor(0.8750)
    """
    return binary_auroc(*_ranks(inlier, outlier), validate_args=False)


def aupr(inlier: Tensor, outlier: Tensor) -> Tensor:
    """Compute the average precision: sum_n (recall_n - recall_{n-1}) precision_n over descending thresholds.

    Args:
        inlier: the scores of inliers, (B1,)
        outlier: the scores of outliers, (B2,)

    Returns:
        A scalar between 0 and 1.

    >>> aupr(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))  # 1/2 * 1 + 1/2 * 2/3
    tensor(0.8333)
    """
    return binary_average_precision(*_ranks(inlier, outlier), validate_args=False)


def fpr_at_95_tpr(inlier: Tensor, outlier: Tensor) -> Tensor:
    """Compute the false positive rate at a true positive rate of 95%: min {FPR(t): TPR(t) >= 0.95}.

    Args:
        inlier: the scores of inliers, (B1,)
        outlier: the scores of outliers, (B2,); each score is used as a threshold t, without interpolation

    Returns:
        A scalar between 0 and 1.

    >>> fpr_at_95_tpr(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    tensor(0.5000)
    """
    false_positives, true_positives, _ = binary_roc(*_ranks(inlier, outlier), validate_args=False)
    return false_positives[true_positives >= 0.95].amin()


def _ranks(inlier: Tensor, outlier: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ranks of all scores, scaled to [0, 1), and whether each is an outlier, (B1 + B2,) each."""
    # Scores are replaced by ranks, because torchmetrics applies a sigmoid to scores outside [0, 1], which makes 20 and
    # 30 equal.
    check_shapes("inlier scores (B1,) and outlier scores (B2,)", inlier, outlier)
    _, rank = torch.unique(torch.cat([inlier, outlier]), return_inverse=True)
    return rank.float() / len(rank), (torch.arange(len(rank), device=rank.device) >= len(inlier)).long()


class _UnseenMetric(CurveMetric):
    higher_is_better = True
    states = ("inlier", "outlier")

    def update(self, inlier: Tensor | None = None, outlier: Tensor | None = None) -> None:
        """Add the scores of inliers (B1,), of outliers (B2,), or of both."""
        for name, scores in (("inlier", inlier), ("outlier", outlier)):
            if scores is not None:
                check_shapes(f"{name} scores (B,)", scores, empty=True)
                self._append(name, scores)


@final
class AUROC(_UnseenMetric):
    """Compute `auroc` over all batches.

    >>> metric = AUROC()
    >>> metric.update(inlier=torch.tensor([0.1, 0.2]))
    >>> metric.update(outlier=torch.tensor([0.2, 0.9]))
    >>> metric.compute()
    tensor(0.8750)
    """

    function = staticmethod(auroc)


@final
class AUPR(_UnseenMetric):
    """Compute `aupr` over all batches.

    >>> metric = AUPR()
    >>> metric.update(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    >>> metric.compute()
    tensor(0.8333)
    """

    function = staticmethod(aupr)


@final
class FPR95(_UnseenMetric):
    """Compute `fpr_at_95_tpr` over all batches.

    >>> metric = FPR95()
    >>> metric.update(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False
    function = staticmethod(fpr_at_95_tpr)

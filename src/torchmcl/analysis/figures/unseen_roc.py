from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 250  # per curve


def unseen_roc(*evaluations: RunEvaluation) -> "Figure":
    """Plot the ROC curve of each unseen-data score, or of each run's best score if there are several runs."""
    figure = style.new(4.6, 4.4)
    axes = figure.subplots()
    axes.plot((0, 100), (0, 100), color=style.GREY, linewidth=1)
    for number, (evaluation, score) in enumerate(_curves(evaluations)):
        assert evaluation.unseen is not None
        known, unseen = evaluation.test.get(score), evaluation.unseen.get(score)
        rejected, detected = roc(known, unseen)
        area = 100 * float(metrics.auroc(known, unseen))
        run = f"{style.label(evaluation.name)}, " if len(evaluations) > 1 else ""
        label = f"{run}{score.replace('_', ' ')}: {area:.1f}"
        axes.plot((100 * rejected).numpy(), (100 * detected).numpy(), label=label, **style.line(number))
    xlabel, ylabel = "false positives: percent of the test set", "true positives: percent of the unseen data"
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 100), ylim=(0, 101))
    style.tidy(axes, grid="both")
    figure.legend(title="AUROC", title_fontsize=8, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def roc(inlier: Tensor, outlier: Tensor) -> tuple[Tensor, Tensor]:
    """Return ascending false and true positive rates at up to 250 thresholds: (B1,), (B2,) -> (P,), (P,).

    >>> roc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    (tensor([0.0000, 0.0000, 0.5000, 1.0000]), tensor([0.0000, 0.5000, 1.0000, 1.0000]))
    """
    thresholds = torch.cat([inlier, outlier]).unique().flip(0)
    chosen = torch.linspace(0, len(thresholds), min(MAX_POINTS, len(thresholds) + 1)).round().long()
    false_positives, true_positives = (
        torch.cat([torch.zeros(1), 1 - torch.searchsorted(values.sort().values, thresholds) / len(values)])[chosen]
        for values in (inlier, outlier)
    )
    return false_positives, true_positives


def _curves(evaluations: tuple[RunEvaluation, ...]) -> list[tuple[RunEvaluation, str]]:
    if len(evaluations) > 1:
        return [(evaluation, evaluation.metrics["unseen"]["best"]) for evaluation in evaluations]
    scores = evaluations[0].metrics["unseen"]["scores"]
    return [(evaluations[0], name) for name in sorted(scores, key=lambda name: -scores[name]["auroc"])]

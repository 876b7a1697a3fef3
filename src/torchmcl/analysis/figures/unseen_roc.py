from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 250


def unseen_roc(*evaluations: RunEvaluation) -> "Figure":
    """How much of unseen data each score finds, at what loss of the known; of several runs, each one's best score."""
    figure = style.new(4.6, 4.4)
    axes = figure.subplots()
    axes.plot((0, 100), (0, 100), color=style.GREY, linewidth=1)
    for number, (evaluation, score) in enumerate(_chosen(evaluations)):
        assert evaluation.unseen is not None
        known, foreign = evaluation.test.gathered(score), evaluation.unseen.gathered(score)
        lost, found = roc(known, foreign)
        area = 100 * float(metrics.auroc(known, foreign))
        name = (
            score.replace("_", " ")
            if len(evaluations) == 1
            else f"{style.named(evaluation.name)}, {score.replace('_', ' ')}"
        )
        axes.plot((100 * lost).numpy(), (100 * found).numpy(), label=f"{name}: {area:.1f}", **style.line(number))
    axes.set(
        xlabel="percent of the known taken for unseen",
        ylabel="percent of the unseen found",
        xlim=(0, 100),
        ylim=(0, 101),
    )
    style.tidy(axes, grid="both")
    figure.legend(title="AUROC", title_fontsize=8, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return figure


def roc(inlier: Tensor, outlier: Tensor) -> tuple[Tensor, Tensor]:
    """False and true positives at every threshold, thinned to some hundred: (B1,), (B2,) -> parts of 1, rising.

    >>> roc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 0.9]))
    (tensor([0.0000, 0.0000, 0.5000, 1.0000]), tensor([0.0000, 0.5000, 1.0000, 1.0000]))
    """
    thresholds = torch.cat([inlier, outlier]).unique().flip(0)
    parts = []
    for values in (inlier, outlier):
        below = torch.searchsorted(values.sort().values, thresholds)
        parts.append(torch.cat([torch.zeros(1), 1 - below / len(values)]))
    few = torch.linspace(0, len(thresholds), min(POINTS, len(thresholds) + 1)).round().long()
    return parts[0][few], parts[1][few]


def _chosen(evaluations: tuple[RunEvaluation, ...]) -> list[tuple[RunEvaluation, str]]:
    if len(evaluations) > 1:
        return [(evaluation, evaluation.metrics["unseen"]["best"]) for evaluation in evaluations]
    by_area = evaluations[0].metrics["unseen"]["scores"]
    return [(evaluations[0], score) for score in sorted(by_area, key=lambda name: -by_area[name]["auroc"])]

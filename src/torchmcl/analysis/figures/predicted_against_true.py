from typing import TYPE_CHECKING

import torch

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS, MAX_PANELS = 1000, 4


def predicted_against_true(evaluation: RegressionEvaluation) -> "Figure":
    """Plot the mean of the hypotheses and the best hypothesis against the true value, one panel per target value."""
    example, target = evaluation.rows(MAX_POINTS)
    answer, scale = evaluation.answer, torch.tensor(evaluation.task.scale or (1.0,) * target.shape[1])
    found = answer.hypotheses[:, example]
    best = found[((found - target) / scale).square().sum(2).argmin(0), torch.arange(len(target))]
    panels = min(target.shape[1], MAX_PANELS)
    figure = style.new(max(4.6, 2.9 * panels), 3.2)
    for d, axes in enumerate(figure.subplots(1, panels, squeeze=False)[0]):
        true = target[:, d].numpy()
        for number, (name, values) in enumerate((("mean", answer.mean[example]), ("best hypothesis", best))):
            colour = style.PALETTE[number]
            axes.scatter(true, values[:, d].numpy(), s=7, alpha=0.5, color=colour, linewidths=0, label=name)
        ends = [float(target[:, d].min()), float(target[:, d].max())]
        axes.plot(ends, ends, color="black", linewidth=1)
        axes.set(xlabel="true value" if panels == 1 else f"true value {d + 1}")
        style.tidy(axes, grid="both")
        if d == 0:
            axes.set(ylabel="predicted value")
            style.legend(axes, markerscale=2, handlelength=1)
    return figure

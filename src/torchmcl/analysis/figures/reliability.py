from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability(*evaluations: RunEvaluation) -> "Figure":
    """Plot accuracy against confidence, and the distribution of confidence below, with one line per run."""
    figure = style.new(4.6, 3.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot((0, 100), (0, 100), color=style.GREY, linewidth=1, label="perfect calibration")
    for number, evaluation in enumerate(evaluations):
        count, confidence, right = evaluation.test.get("reliability").sum(0).numpy()
        filled = count > 0
        ece = 100 * np.abs(right - confidence).sum() / count.sum()
        label = f"ECE {ece:.1f} %" if len(evaluations) == 1 else f"{style.label(evaluation.name)}, ECE {ece:.1f} %"
        x, y = 100 * confidence[filled] / count[filled], 100 * right[filled] / count[filled]
        if evaluation.specialists.model_config.rejection.rescales:
            label += " (calibrated)"
        marker = "osD^vP"[number % 6]
        upper.plot(x, y, marker=marker, markersize=3.5, label=label, clip_on=False, **style.line(number))
        lower.stairs(100 * count / count.sum(), np.linspace(0, 100, len(count) + 1), **style.line(number))
    upper.set(ylabel="accuracy in percent", xlim=(0, 100), ylim=(0, 100))
    lower.set(xlabel="confidence in percent", ylabel="percent of\npredictions")
    for axes in (upper, lower):
        style.tidy(axes, grid="both")
    style.legend(upper)
    return figure

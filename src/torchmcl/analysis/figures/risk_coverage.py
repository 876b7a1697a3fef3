from typing import TYPE_CHECKING

import numpy as np

from torchmcl import metrics
from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 300  # per curve


def risk_coverage(*evaluations: RunEvaluation) -> "Figure":
    """Plot the error of accepted predictions against the coverage. A dot marks a calibrated threshold."""
    figure = style.new()
    axes = figure.subplots()
    final, highest = [], 0.0
    for number, evaluation in enumerate(evaluations):
        confidence, wrong = evaluation.test.get("confidence"), evaluation.test.get("wrong")
        coverage, risk = (100 * values.numpy() for values in metrics.risk_coverage(confidence, wrong))
        shown = np.unique(np.linspace(0, len(risk) - 1, MAX_POINTS).round().astype(int))
        axes.plot(coverage[shown], risk[shown], label=style.label(evaluation.name), **style.line(number))
        final.append(float(risk[-1]))
        highest = max(highest, float(risk[shown].max()))
        rejection = evaluation.metrics.get("rejection")
        if rejection is not None and rejection["accepted_error"] is not None and rejection["threshold"] > 0:
            axes.plot(rejection["coverage"], rejection["accepted_error"], "o", color=style.line(number)["color"])
    xlabel, ylabel = "accepted predictions in percent", "error of accepted predictions in percent"
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 100), ylim=(0, None))
    style.tidy(axes, grid="both")
    style.mixed_scale(axes, final, highest)
    if len(evaluations) > 1:
        style.legend(axes)
    return figure

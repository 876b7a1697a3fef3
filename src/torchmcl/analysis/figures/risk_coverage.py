from typing import TYPE_CHECKING

import numpy as np

from torchmcl import metrics
from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 300  # of a curve: more would not be seen


def risk_coverage(*evaluations: RunEvaluation) -> "Figure":
    """The error among the surest answers, the more of them are accepted; a line a run, a dot its own threshold."""
    figure = style.new()
    axes = figure.subplots()
    for number, evaluation in enumerate(evaluations):
        confidence, wrong = evaluation.test.gathered("confidence"), evaluation.test.gathered("wrong")
        coverage, risk = (100 * values.numpy() for values in metrics.risk_coverage(confidence, wrong))
        few = np.unique(np.linspace(0, len(risk) - 1, POINTS).round().astype(int))
        label = "accepted by confidence" if len(evaluations) == 1 else style.named(evaluation.name)
        axes.plot(coverage[few], risk[few], label=label, **style.line(number))
        kept = evaluation.metrics.get("rejection")
        if kept is not None and kept["accepted_error"] is not None and kept["threshold"] > 0:
            axes.plot(kept["coverage"], kept["accepted_error"], "o", color=style.line(number)["color"])
    axes.set(xlabel="percent accepted", ylabel="error among them in percent", xlim=(0, 100), ylim=(0, None))
    style.tidy(axes, grid="both")
    if len(evaluations) > 1:
        style.legend(axes)
    return figure

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def hypothesis_shares(evaluation: RegressionEvaluation) -> "Figure":
    """Plot each member's share of the training assignments, the test targets that it is closest to, and its score."""
    share = evaluation.training_metrics.get("share")
    parts = {} if share is None else {"training assignments": share}
    parts["closest on the test set"] = evaluation.metrics["winners"]
    parts["mean score"] = (100 * evaluation.answer.scores.mean(1)).tolist()
    figure = style.new(max(4.6, 1.6 + 0.5 * evaluation.members))
    axes = figure.subplots()
    width = 0.84 / len(parts)
    for number, (name, values) in enumerate(parts.items()):
        x = np.arange(evaluation.members) + (number - (len(parts) - 1) / 2) * width
        axes.bar(x, values, width, label=name, **style.bar(number))
    axes.set_xticks(range(evaluation.members), [str(m + 1) for m in range(evaluation.members)])
    axes.set(xlabel="hypothesis", ylabel="percent", ylim=(0, None))
    style.tidy(axes, grid="y")
    style.legend(axes)
    return figure

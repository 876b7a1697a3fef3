from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability(*evaluations: RunEvaluation) -> "Figure":
    """How often the ensemble is right at each confidence, above how many answers have it; a line a run."""
    figure = style.new(4.6, 3.6)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot((0, 100), (0, 100), color=style.GREY, linewidth=1, label="as right as sure")
    for number, evaluation in enumerate(evaluations):
        count, confidence, right = evaluation.test.gathered("reliability").sum(0).numpy()
        there = count > 0
        ece = 100 * np.abs(right - confidence).sum() / count.sum()
        label = f"ECE {ece:.1f} %" if len(evaluations) == 1 else f"{style.named(evaluation.name)}, ECE {ece:.1f} %"
        place, height = 100 * confidence[there] / count[there], 100 * right[there] / count[there]
        mark = "osD^vP"[number % 6]
        upper.plot(place, height, marker=mark, markersize=3.5, label=label, clip_on=False, **style.line(number))
        edges = np.linspace(0, 100, len(count) + 1)
        lower.stairs(100 * count / count.sum(), edges, **style.line(number))
    upper.set(ylabel="percent right", xlim=(0, 100), ylim=(0, 100))
    lower.set(xlabel="confidence in percent", ylabel="percent of\nanswers")
    for axes in (upper, lower):
        style.tidy(axes, grid="both")
    style.legend(upper, loc="best")
    return figure

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NUMBERED = 18  # with more bars, their values are not written above them


def member_errors(evaluation: RunEvaluation) -> "Figure":
    """Plot each member's error on all classes, on its own and on the others. Lines mark the oracle and top-1 error."""
    wrong = 100 * evaluation.test.get("errors")  # (N, M)
    parts = {"all classes": wrong.mean(0)}
    if evaluation.specialised and evaluation.own is not None:
        own = evaluation.own.to(wrong)
        parts["own classes"] = (wrong * own).sum(0) / own.sum(0)  # NaN if a member owns no class
        parts["other classes"] = (wrong * (1 - own)).sum(0) / (1 - own).sum(0)
    figure = style.new(max(4.6, 1.6 + 0.6 * evaluation.members))
    axes = figure.subplots()
    width = 0.84 / len(parts)
    for number, (name, values) in enumerate(parts.items()):
        x = np.arange(evaluation.members) + (number - (len(parts) - 1) / 2) * width
        drawn = axes.bar(x, values.nan_to_num(0).numpy(), width, label=name, **style.bar(number))
        if evaluation.members * len(parts) <= MAX_NUMBERED:
            labels = ["" if value != value else f"{value:.0f}" if value >= 10 else f"{value:.1f}" for value in values]
            axes.bar_label(drawn, labels, fontsize=6.5, padding=1)
    for name, key, dashes in (("top-1", "top1_error", "--"), ("oracle", "oracle_error", ":")):
        axes.axhline(evaluation.metrics[key], color="black", linewidth=1.2, linestyle=dashes, label=f"{name} error")
    axes.set_xticks(range(evaluation.members), [str(m + 1) for m in range(evaluation.members)])
    ylabel = "error in percent of the pixels" if evaluation.dense else "error in percent"
    axes.set(xlabel="member", ylabel=ylabel, ylim=(0, None))
    style.tidy(axes, grid="y")
    style.legend(axes)
    return figure

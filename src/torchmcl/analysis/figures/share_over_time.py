from typing import TYPE_CHECKING, Any

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def share_over_time(evaluation: RunEvaluation | RegressionEvaluation) -> "Figure":
    """Plot each member's share of all assignments per epoch. A vertical line marks a change of phase."""
    from matplotlib.ticker import MaxNLocator

    figure = style.new()
    axes = figure.subplots()
    epochs = [row["epoch"] for row in evaluation.history]
    marker = "o" if len(epochs) < 12 else None
    for m in range(evaluation.members):
        share = [100 * row.get(f"share_{m + 1}", float("nan")) for row in evaluation.history]
        axes.plot(epochs, share, marker=marker, markersize=3.5, label=f"member {m + 1}", **style.line(m))
    axes.set(xlabel="epoch", ylabel="percent of assignments", ylim=(0, None))
    phases = [row.get("phase", "") for row in evaluation.history]
    text: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "color": style.GREY}
    text["xycoords"] = axes.get_xaxis_transform()
    for i in range(1, len(phases)):
        if phases[i] != phases[i - 1]:
            x = (epochs[i - 1] + epochs[i]) / 2
            axes.axvline(x, color=style.GREY, linewidth=1)
            axes.annotate(phases[i - 1], (x, 1), (-4, 1), ha="right", **text)
            axes.annotate(phases[i], (x, 1), (4, 1), ha="left", **text)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.tidy(axes, grid="y")
    style.legend(axes)
    return figure

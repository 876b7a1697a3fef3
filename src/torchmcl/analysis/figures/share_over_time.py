from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def share_over_time(evaluation: RunEvaluation) -> "Figure":
    """What part of all assignments each member took in each epoch; a line stands where the objective changed."""
    from matplotlib.ticker import MaxNLocator

    figure = style.new()
    axes = figure.subplots()
    epochs = [row["epoch"] for row in evaluation.history]
    mark = "o" if len(epochs) < 12 else None
    for m in range(evaluation.members):
        share = [100 * row.get(f"share_{m + 1}", float("nan")) for row in evaluation.history]
        axes.plot(epochs, share, marker=mark, markersize=3.5, label=f"member {m + 1}", **style.line(m))
    axes.set(xlabel="epoch", ylabel="percent of assignments", ylim=(0, None))
    phases = [row.get("phase", "") for row in evaluation.history]
    for at in range(1, len(phases)):
        if phases[at] != phases[at - 1]:
            place = (epochs[at - 1] + epochs[at]) / 2
            axes.axvline(place, color=style.GREY, linewidth=1)
            for phase, side, shift in ((phases[at - 1], "right", -4), (phases[at], "left", 4)):
                axes.annotate(
                    phase,
                    (place, 1),
                    (shift, 1),
                    xycoords=axes.get_xaxis_transform(),
                    textcoords="offset points",
                    fontsize=7.5,
                    color=style.GREY,
                    ha=side,
                )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.tidy(axes, grid="y")
    style.legend(axes, ncols=min(evaluation.members, 3), loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure

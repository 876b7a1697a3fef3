from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERED = 40  # more groups than this have no room for numbers


def assignment_matrix(evaluation: RunEvaluation) -> "Figure":
    """Which member took what of each class in the last epoch, in percent of the class; owners are framed."""
    from matplotlib.patches import Rectangle

    assert evaluation.assigned is not None
    assert evaluation.owners is not None
    part = (100 * evaluation.assigned / evaluation.assigned.sum(1, keepdim=True).clamp_min(1e-9)).numpy()
    groups, members = part.shape
    few, size = groups <= NUMBERED, 0.25 if groups <= 20 else 0.19
    figure = style.new(max(2.3 + 0.52 * members, 3.4), 0.9 + (size * groups if few else 6.0))
    axes = figure.subplots()
    seen = np.ma.masked_less(part, 0.5)  # nothing is no colour, on any paper
    axes.pcolormesh(seen, cmap="Blues", vmin=0, vmax=100, edgecolors="white" if few else "none", linewidth=1)
    for group, member in np.argwhere(evaluation.owners.numpy()) if few and not evaluation.owners.all() else ():
        frame = Rectangle(
            (member, group), 1, 1, fill=False, edgecolor=style.OWNER, linewidth=1.6, clip_on=False, zorder=3
        )
        axes.add_patch(frame)
    for (group, member), value in np.ndenumerate(part) if few else ():
        colour = style.BRIGHT if value > 55 else style.DARK if value >= 0.5 else style.GREY
        axes.text(member + 0.5, group + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=30 * size, color=colour)
    axes.set(xlabel="member", xlim=(0, members), ylim=(groups, 0))
    axes.set_xticks(np.arange(members) + 0.5, [str(m + 1) for m in range(members)])
    shown = range(0, groups, 1 if few else -(-groups // NUMBERED))
    axes.set_yticks([at + 0.5 for at in shown], [style.named(evaluation.groups[at], 18) for at in shown])
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    style.tidy(axes)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure

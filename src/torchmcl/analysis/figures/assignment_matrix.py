from typing import TYPE_CHECKING, Any

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NUMBERED = 40  # a matrix with more groups has no numbers in its cells


def assignment_matrix(evaluation: RunEvaluation) -> "Figure":
    """Plot the percentage of each class that each member took in the last epoch. Frames mark the owners."""
    from matplotlib.patches import Rectangle

    assert evaluation.assigned is not None
    assert evaluation.owners is not None
    percent = (100 * evaluation.assigned / evaluation.assigned.sum(1, keepdim=True).clamp_min(1e-9)).numpy()
    groups, members = percent.shape
    numbered, size = groups <= MAX_NUMBERED, 0.25 if groups <= 20 else 0.19
    figure = style.new(max(2.3 + 0.52 * members, 3.4), 0.9 + (size * groups if numbered else 6.0))
    axes = figure.subplots()
    visible = np.ma.masked_less(percent, 0.5)  # empty cells show the background in both themes
    edges: dict[str, Any] = {"edgecolors": "white" if numbered else "none", "linewidth": 1}
    axes.pcolormesh(visible, cmap=style.heat_map(), vmin=0, vmax=100, **edges)
    for group, member in np.argwhere(evaluation.owners.numpy()) if numbered and not evaluation.owners.all() else ():
        frame = Rectangle((member, group), 1, 1, fill=False, edgecolor=style.OWNER, linewidth=1.6, zorder=3)
        frame.set_clip_on(False)
        axes.add_patch(frame)
    for (group, member), value in np.ndenumerate(percent) if numbered else ():
        colour = style.text_on_heat(value) if value >= 0.5 else style.GREY
        axes.text(member + 0.5, group + 0.5, f"{value:.0f}", ha="center", va="center", fontsize=30 * size, color=colour)
    axes.set(xlabel="member", xlim=(0, members), ylim=(groups, 0))
    axes.set_xticks(np.arange(members) + 0.5, [str(m + 1) for m in range(members)])
    named = range(0, groups, 1 if numbered else -(-groups // MAX_NUMBERED))
    axes.set_yticks([group + 0.5 for group in named], [style.label(evaluation.groups[group], 18) for group in named])
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    style.tidy(axes)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure

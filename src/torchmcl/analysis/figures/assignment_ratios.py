from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_GROUPS = 40


def assignment_ratios(evaluation: RunEvaluation, epochs: Sequence[int] = (1, 10)) -> "Figure":
    """Plot each member's share of each class's loss-based assignments up to each of `epochs` and the last epoch."""
    assert evaluation.assignment_history is not None
    by_epoch = ratios(evaluation.assignment_history, epochs)
    names = evaluation.groups[:MAX_GROUPS]
    figure = style.new(1.2 + 1.9 * len(by_epoch), 1.0 + 0.19 * len(names))
    handles: list[Any] = []
    grid = figure.subplots(1, len(by_epoch), squeeze=False, sharey=True)
    for axes, (epoch, ratio) in zip(grid[0], by_epoch.items(), strict=True):
        handles = bars(axes, ratio[:MAX_GROUPS], names)
        axes.set_title(f"up to epoch {epoch}")
        style.tidy(axes)
    labels = [f"member {m + 1}" for m in range(evaluation.members)]
    columns = min(evaluation.members, 4)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    return figure


def ratios(history: ArrayLike, epochs: Sequence[int] = (1, 10)) -> dict[int, NDArray[np.float64]]:
    """Return each member's share of each class's assignments up to each of `epochs` and the last epoch, (groups, M).

    >>> ratios([[[1, 0]], [[0, 3]]])[2]
    array([[0.25, 0.75]])
    """
    sums = np.cumsum(np.asarray(history, dtype=np.float64), axis=0)
    last = len(sums)
    totals = np.maximum(sums.sum(2, keepdims=True), 1e-12)
    return {epoch: sums[epoch - 1] / totals[epoch - 1] for epoch in sorted({*(min(e, last) for e in epochs), last})}


def bars(axes: "Axes", ratio: NDArray[np.float64], names: Sequence[str]) -> list[Any]:
    """Plot one bar per class, divided into one part per member, and return the handles for a legend."""
    left, handles = np.zeros(len(ratio)), []
    for m, part in enumerate(ratio.T):
        handles.append(axes.barh(range(len(ratio)), part, left=left, height=0.82, **style.bar(m)))
        left += part
    axes.set(xlim=(0, 1), xticks=(0, 0.5, 1), ylim=(len(ratio) - 0.5, -0.5))
    axes.set_yticks(range(len(ratio)), [style.label(name, 18) for name in names], fontsize=7)
    return handles

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 40


def assignment_ratios(evaluation: RunEvaluation, epochs: Sequence[int] = (1, 10)) -> "Figure":
    """Of what members wanted of each class up to an epoch, by loss, each one's part: at `epochs` and the last one."""
    assert evaluation.assignment_history is not None
    found = ratios(evaluation.assignment_history, epochs)
    names = evaluation.groups[:MOST]
    figure = style.new(1.2 + 1.9 * len(found), 1.0 + 0.19 * len(names))
    handles: list[Any] = []
    grid = figure.subplots(1, len(found), squeeze=False, sharey=True)
    for axes, (epoch, ratio) in zip(grid[0], found.items(), strict=True):
        handles = bars(axes, ratio[:MOST], names)
        axes.set_title(f"to epoch {epoch}")
        style.tidy(axes)
    labels = [f"member {m + 1}" for m in range(evaluation.members)]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(evaluation.members, 4), frameon=False, fontsize=8
    )
    return figure


def ratios(flow: ArrayLike, epochs: Sequence[int] = (1, 10)) -> dict[int, NDArray[np.float64]]:
    """Within-class ratios of the sums up to some epochs and the last: (epochs, groups, M) -> (groups, M) each.

    >>> ratios([[[1, 0]], [[0, 3]]])[2]
    array([[0.25, 0.75]])
    """
    sums = np.cumsum(np.asarray(flow, dtype=np.float64), axis=0)
    last = len(sums)
    whole = np.maximum(sums.sum(2, keepdims=True), 1e-12)
    return {epoch: sums[epoch - 1] / whole[epoch - 1] for epoch in sorted({*(min(e, last) for e in epochs), last})}


def bars(axes: "Axes", ratio: NDArray[np.float64], names: Sequence[str]) -> list[Any]:
    """A bar for each class, a part of it for each member: (groups, M) -> what a legend names."""
    left, handles = np.zeros(len(ratio)), []
    for m, part in enumerate(ratio.T):
        handles.append(axes.barh(range(len(ratio)), part, left=left, height=0.82, **style.bar(m)))
        left += part
    axes.set(xlim=(0, 1), xticks=(0, 0.5, 1), ylim=(len(ratio) - 0.5, -0.5))
    axes.set_yticks(range(len(ratio)), [style.named(name, 18) for name in names], fontsize=7)
    return handles

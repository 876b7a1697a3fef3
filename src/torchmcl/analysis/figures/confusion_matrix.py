from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NUMBERED, MAX_NAMED = 12, 40  # larger matrices have no numbers in their cells, or names for a few classes only
PER_ROW = 5


def confusion_matrix(evaluation: RunEvaluation) -> "Figure":
    """Plot the percentage of each class's test examples that the ensemble and each member predict as each class.

    The last column of a member with an auxiliary class, after a line, is the auxiliary class. Frames mark the classes
    that a member owns.
    """
    names, members = evaluation.specialists.classes, evaluation.members
    target = evaluation.examples.target
    counts = [confusion(target, evaluation.test.get("label"), len(names), len(names))]
    predicted, outputs = evaluation.test.get("predicted"), len(names) + evaluation.auxiliary
    counts += [confusion(target, predicted[:, m], len(names), outputs) for m in range(members)]
    rows = -(-members // PER_ROW)
    columns = min(members, PER_ROW)
    figure = style.new(7.2, 3.9 + 1.62 * rows)
    upper, lower = figure.subfigures(2, 1, height_ratios=(3.9, 1.62 * rows), squeeze=False)[:, 0]
    axes = upper.subplots()
    _matrix(axes, counts[0], numbered=len(names) <= MAX_NUMBERED)
    shown = range(0, len(names), -(-len(names) // MAX_NAMED))
    labels = [style.label(names[c], 14) for c in shown]
    axes.set_xticks(list(shown), labels, rotation=90 if max(map(len, labels)) > 3 else 0)
    axes.set_yticks(list(shown), labels)
    axes.set(xlabel="predicted by the ensemble", ylabel="target")
    style.tidy(axes)
    axes.tick_params(length=0, labelsize=8 if len(shown) <= 20 else 6)
    grid = lower.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[members:]:
        axes.remove()
    own = evaluation.owners if evaluation.specialised and evaluation.groups == tuple(names) else None
    for m, axes in enumerate(grid[:members]):
        _matrix(axes, counts[m + 1], numbered=False)
        axes.set_title(f"member {m + 1}", fontsize=8, pad=3)
        axes.set(xticks=[], yticks=[])
        if evaluation.auxiliary:
            axes.axvline(len(names) - 0.5, color=style.GREY, linewidth=0.8)
        for c in [] if own is None or len(names) > MAX_NAMED else own[:, m].nonzero().flatten().tolist():
            axes.plot(
                [-0.5, outputs - 0.5, outputs - 0.5, -0.5, -0.5],
                np.array([-1, -1, 1, 1, -1]) / 2 + c,
                color=style.OWNER,
                linewidth=0.9,
            )
    return figure


def confusion(target: Tensor, predicted: Tensor, classes: int, outputs: int) -> NDArray[np.float64]:
    """Return the percentage of each class (rows) that is predicted as each output (columns); NaN without examples.

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]), 2, 3).tolist()
    [[50.0, 0.0, 50.0], [0.0, 100.0, 0.0]]
    """
    index = target.long() * outputs + predicted.long()
    counts = torch.bincount(index, minlength=classes * outputs).reshape(classes, outputs).double()
    return (100 * counts / counts.sum(1, keepdim=True)).numpy()


def _matrix(axes: "Axes", percent: NDArray[np.float64], *, numbered: bool) -> None:
    visible = np.ma.masked_less(np.ma.masked_invalid(percent), 0.5)  # empty cells show the background in both themes
    axes.imshow(visible, cmap=style.heat_map(), vmin=0, vmax=100, aspect="auto", interpolation="none")
    axes.spines[:].set(visible=True, color=style.GREY, linewidth=0.6)
    for (row, column), value in np.ndenumerate(percent) if numbered else ():
        if value >= 0.5:
            colour = style.text_on_heat(value)
            axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7.5, color=colour)

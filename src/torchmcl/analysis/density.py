from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from torchmcl.analysis import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 50
WORST = 15.0  # cross-entropy from which on all goes into the last bin


def counted(values: Tensor, highest: float = 1.0) -> list[int]:
    """Counts in 50 bins from 0 to `highest`, what is beyond in the last.

    >>> import torch
    >>> sum(counted(torch.tensor([0.1, 0.5, 7.0]))), counted(torch.tensor([7.0]))[-1]
    (3, 1)
    """
    bins = values.clamp(0, highest).float().histc(bins=BINS, min=0, max=highest)
    return bins.int().tolist()


def density(axes: "Axes", curves: Iterable[tuple[str, ArrayLike]], highest: float = 1.0) -> None:
    """Counts in bins from 0 to `highest`, each with a name, as densities on a scale on which small ones can be seen."""
    lowest, top = np.inf, 1e-9
    for number, (name, counts) in enumerate(curves):
        heights = np.asarray(counts, dtype=float)
        edges = np.linspace(0, highest, len(heights) + 1)
        heights = heights / max(heights.sum(), 1) / np.diff(edges)
        axes.stairs(heights, edges, label=name, **style.line(number))
        lowest, top = min([lowest, *heights[heights > 0]]), max(top, heights.max())
    axes.set_yscale("log")
    axes.set(
        xlim=(-0.02 * highest, 1.02 * highest), ylim=(min(lowest / 2, top / 1000), 2 * top)
    )  # three decades or more
    style.tidy(axes)
    style.legend(axes)


def histogram(axes: "Axes", counts: ArrayLike, name: str, number: int) -> None:
    """Counts in bins from 0 to 1, in percent, filled: the `number`-th of those that lie over one another."""
    heights = np.asarray(counts, dtype=float)
    axes.stairs(
        100 * heights / max(heights.sum(), 1),
        np.linspace(0, 1, len(heights) + 1),
        fill=True,
        alpha=0.75,
        label=name,
        **style.bar(number),
    )
    axes.set_xlim(0, 1)
    style.tidy(axes)

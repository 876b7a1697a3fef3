from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from torchmcl.analysis import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 50
MAX_CROSS_ENTROPY = 15.0  # larger values are counted in the last bin


def bin_counts(values: Tensor, highest: float = 1.0) -> list[int]:
    """Count values in 50 bins from 0 to `highest`. Larger values are counted in the last bin.

    >>> import torch
    >>> sum(bin_counts(torch.tensor([0.1, 0.5, 7.0]))), bin_counts(torch.tensor([7.0]))[-1]
    (3, 1)
    """
    return values.clamp(0, highest).float().histc(bins=BINS, min=0, max=highest).int().tolist()


def density(axes: "Axes", curves: Iterable[tuple[str, ArrayLike]], highest: float = 1.0) -> None:
    """Plot named curves, given as counts in bins from 0 to `highest`, as densities on a logarithmic scale."""
    lowest, top = np.inf, 1e-9
    for number, (name, counts) in enumerate(curves):
        heights = np.asarray(counts, dtype=float)
        edges = np.linspace(0, highest, len(heights) + 1)
        heights = heights / max(heights.sum(), 1) / np.diff(edges)
        axes.stairs(heights, edges, label=name, **style.line(number))
        lowest, top = min([lowest, *heights[heights > 0]]), max(top, heights.max())
    axes.set_yscale("log")
    # The y-axis covers at least three decades.
    axes.set(xlim=(-0.02 * highest, 1.02 * highest), ylim=(min(lowest / 2, top / 1000), 2 * top))
    style.tidy(axes)


def histogram(axes: "Axes", counts: ArrayLike, name: str, number: int) -> None:
    """Plot counts in bins from 0 to 1 as a filled histogram in percent. `number` selects the colour and hatch."""
    heights = np.asarray(counts, dtype=float)
    edges = np.linspace(0, 1, len(heights) + 1)
    percent = 100 * heights / max(heights.sum(), 1)
    axes.stairs(percent, edges, fill=True, alpha=0.75, label=name, **style.bar(number))
    axes.set_xlim(0, 1)
    style.tidy(axes)

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.figures.hypotheses_over_input import target_range
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS, PIXELS = 4, 160


def voronoi_cells(evaluation: RegressionEvaluation) -> "Figure":
    """Plot the Voronoi cells of the hypotheses for four test examples with two-dimensional targets.

    Cells are those of the standardised targets. The area of a point is proportional to the score of its hypothesis.
    All panels show the range of the test targets; hypotheses that are far from all targets lie outside of it.
    """
    chosen = torch.linspace(0, len(evaluation.examples) - 1, min(PANELS, len(evaluation.examples))).round().long()
    figure = style.new(2.4 * len(chosen), 2.7)
    rows, target = evaluation.rows()
    low, high = target_range(target)
    for axes, example in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        found, score = evaluation.answer.hypotheses[:, example], evaluation.answer.scores[:, example]
        axes.set(title=f"test example {int(example) + 1}")
        draw_cells(axes, found, score, target[rows == example], (low, high), evaluation.task.scale)
    figure.axes[0].set(ylabel="target value 2")
    return figure


def draw_cells(
    axes: "Axes",
    found: Tensor,
    score: Tensor,
    true: Tensor,
    limits: tuple[Tensor, Tensor],
    scale: tuple[float, ...] | None,
) -> None:
    """Draw the cells of hypotheses (M, 2) with scores (M,) and targets (T, 2); `limits` are those of the axes."""
    from matplotlib.colors import to_rgba

    low, high = limits
    axis = [torch.linspace(float(low[d]), float(high[d]), PIXELS) for d in range(2)]
    pixels = torch.stack(torch.meshgrid(*axis, indexing="xy"), 2)
    cell = ((pixels.unsqueeze(2) - found) / torch.tensor(scale or (1.0, 1.0))).square().sum(3).argmin(2)
    solid = [style.line(m)["color"] for m in range(len(found))]
    colours = np.array([to_rgba(colour, 0.3) for colour in solid])
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    axes.imshow(colours[cell.numpy()], origin="lower", extent=extent, aspect="auto", interpolation="nearest")
    x, y = found.unbind(1)
    sizes = (120 * score).clamp_min(4).numpy()
    axes.scatter(x.numpy(), y.numpy(), s=sizes, c=solid, edgecolors="white", linewidths=0.6, zorder=2)
    x, y = true.unbind(1)
    size, width = (45, 1.6) if len(true) <= 3 else (12, 0.8)  # many crosses must not hide the hypotheses
    axes.scatter(x.numpy(), y.numpy(), marker="x", s=size, color="black", linewidths=width, zorder=3)
    axes.set(xlabel="target value 1", xlim=extent[:2], ylim=extent[2:])
    style.tidy(axes)

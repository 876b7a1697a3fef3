from typing import TYPE_CHECKING

import numpy as np
import torch

from torchmcl.analysis import style
from torchmcl.analysis.figures.hypotheses_over_input import target_range
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS, PIXELS = 4, 160


def voronoi_cells(evaluation: RegressionEvaluation) -> "Figure":
    """Plot the Voronoi cells of the hypotheses for four test examples with two-dimensional targets.

    Cells are those of the standardised targets. The area of a point is proportional to the score of its hypothesis.
    All panels show the range of the test targets; hypotheses that are far from all targets lie outside of it.
    """
    from matplotlib.colors import to_rgba

    scale = torch.tensor(evaluation.task.scale or (1.0, 1.0))
    chosen = torch.linspace(0, len(evaluation.examples) - 1, min(PANELS, len(evaluation.examples))).round().long()
    figure = style.new(2.4 * len(chosen), 2.7)
    rows, target = evaluation.rows()
    low, high = target_range(target)
    for axes, example in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        found, score = evaluation.answer.hypotheses[:, example], evaluation.answer.scores[:, example]
        true = target[rows == example]
        axis = [torch.linspace(float(low[d]), float(high[d]), PIXELS) for d in range(2)]
        pixels = torch.stack(torch.meshgrid(*axis, indexing="xy"), 2)
        cell = ((pixels.unsqueeze(2) - found) / scale).square().sum(3).argmin(2)
        colours = np.array([to_rgba(style.line(m)["color"], 0.3) for m in range(evaluation.members)])
        extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
        axes.imshow(colours[cell.numpy()], origin="lower", extent=extent, aspect="auto", interpolation="nearest")
        solid = [style.line(m)["color"] for m in range(evaluation.members)]
        sizes = (120 * score).clamp_min(4).numpy()
        axes.scatter(*found.T.numpy(), s=sizes, c=solid, edgecolors="white", linewidths=0.6, zorder=2)
        size, width = (45, 1.6) if len(true) <= 3 else (12, 0.8)  # many crosses must not hide the hypotheses
        axes.scatter(*true.T.numpy(), marker="x", s=size, color="black", linewidths=width, zorder=3)
        axes.set(xlabel="target value 1", title=f"test example {int(example) + 1}")
        axes.set(xlim=extent[:2], ylim=extent[2:])
        style.tidy(axes)
    figure.axes[0].set(ylabel="target value 2")
    return figure

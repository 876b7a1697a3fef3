from typing import TYPE_CHECKING

import numpy as np
import torch

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS, PIXELS = 4, 160


def voronoi_cells(evaluation: RegressionEvaluation) -> "Figure":
    """Plot the Voronoi cells of the hypotheses for four test examples with two-dimensional targets.

    Cells are those of the standardised targets. The area of a point is proportional to the score of its hypothesis.
    """
    from matplotlib.colors import to_rgba

    scale = torch.tensor(evaluation.task.scale or (1.0, 1.0))
    chosen = torch.linspace(0, len(evaluation.examples) - 1, min(PANELS, len(evaluation.examples))).round().long()
    figure = style.new(2.4 * len(chosen), 2.7)
    rows, target = evaluation.rows()
    for axes, example in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, strict=True):
        found, score = evaluation.answer.hypotheses[:, example], evaluation.answer.scores[:, example]
        true = target[rows == example]
        points = torch.cat([found, true])
        low, high = points.amin(0), points.amax(0)
        margin = 0.2 * (high - low) + 0.1 * scale
        low, high = low - margin, high + margin
        axis = [torch.linspace(float(low[d]), float(high[d]), PIXELS) for d in range(2)]
        pixels = torch.stack(torch.meshgrid(*axis, indexing="xy"), 2)
        cell = ((pixels.unsqueeze(2) - found) / scale).square().sum(3).argmin(2)
        colours = np.array([to_rgba(style.line(m)["color"], 0.3) for m in range(evaluation.members)])
        extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
        axes.imshow(colours[cell.numpy()], origin="lower", extent=extent, aspect="auto", interpolation="nearest")
        solid = [style.line(m)["color"] for m in range(evaluation.members)]
        sizes = (120 * score).clamp_min(4).numpy()
        axes.scatter(*found.T.numpy(), s=sizes, c=solid, edgecolors="white", linewidths=0.6, zorder=2)
        axes.scatter(*true.T.numpy(), marker="x", s=45, color="black", linewidths=1.6, zorder=3)
        axes.set(xlabel="target value 1", title=f"test example {int(example) + 1}")
        style.tidy(axes)
    figure.axes[0].set(ylabel="target value 2")
    return figure

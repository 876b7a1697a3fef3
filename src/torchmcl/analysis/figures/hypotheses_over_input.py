from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS, MAX_PANELS, STEPS = 1000, 2, 100


def hypotheses_over_input(evaluation: RegressionEvaluation) -> "Figure":
    """Plot the hypotheses, opaque where their scores are high, and the test targets over a one-dimensional input.

    Hypotheses that are far from all targets lie outside of the axes, see `target_range`.
    """
    from matplotlib.collections import LineCollection

    example, target = evaluation.rows(MAX_POINTS)
    x = evaluation.examples.images[torch.arange(len(evaluation.examples))].flatten()
    grid = torch.linspace(float(x.min()), float(x.max()), STEPS)
    answer = evaluation.specialists.predict(grid[:, None])
    opacity = (answer.scores * evaluation.members).clamp(0.12, 1)
    panels = min(target.shape[1], MAX_PANELS)
    low, high = target_range(torch.cat([target, answer.mean]))
    figure = style.new(max(4.6, 2.9 * panels), 3.2)
    for d, axes in enumerate(figure.subplots(1, panels, squeeze=False)[0]):
        axes.scatter(x[example].numpy(), target[:, d].numpy(), s=9, color=style.GREY, alpha=0.6, linewidths=0, zorder=3)
        for m, values in enumerate(answer.hypotheses[:, :, d]):
            points = torch.stack([grid, values], 1)
            pieces = list(torch.stack([points[:-1], points[1:]], 1).numpy())
            colour = style.line(m)["color"]
            axes.add_collection(LineCollection(pieces, colors=colour, alpha=opacity[m, :-1].numpy(), linewidths=2.2))
            axes.plot([], [], color=colour, linewidth=2.2, label=f"hypothesis {m + 1}")
        axes.plot(grid.numpy(), answer.mean[:, d].numpy(), color="black", linewidth=1, linestyle="--", label="mean")
        axes.set_ylim(float(low[d]), float(high[d]))
        axes.set(xlabel="input", ylabel="target" if panels == 1 else f"target value {d + 1}")
        style.tidy(axes, grid="both")
        if d == 0 and evaluation.members <= 12:
            style.legend(axes)
    return figure


def target_range(target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the limits of axes that show targets (N, D) with a margin: (D,) each.

    >>> target_range(torch.tensor([[0.0], [4.0]]))
    (tensor([-1.]), tensor([5.]))
    """
    low, high = target.amin(0), target.amax(0)
    margin = torch.where(high > low, (high - low) / 4, torch.ones_like(low))
    return low - margin, high + margin

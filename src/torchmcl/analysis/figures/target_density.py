from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.inference.predictor import RegressionAnswer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 300


def target_density(answer: RegressionAnswer, target: Tensor, limits: tuple[Tensor, Tensor]) -> "Figure":
    """Plot the answer for one example over its target value: a tick for each hypothesis, as high as its score.

    The area behind the ticks is the density, if one is defined. Targets (T, 1) are crosses; `limits` are those of the
    axis, (1,) each.
    """
    low, high = float(limits[0]), float(limits[1])
    figure = style.new(4.6, 2.9)
    behind = figure.subplots()
    axes = behind.twinx()
    found = answer.hypotheses[:, 0, 0]
    if answer.task.kernel is not None:
        grid = torch.cat([torch.linspace(low, high, STEPS), found[(found > low) & (found < high)]]).sort().values
        repeated = RegressionAnswer.of(answer.task, answer.outputs.expand(-1, len(grid), -1))
        density = repeated.log_density(grid.unsqueeze(1)).exp()
        behind.fill_between(grid.numpy(), density.numpy(), color=style.GREY, alpha=0.35, linewidth=0)
        axes.plot([], [], color=style.GREY, alpha=0.35, linewidth=7, label="density")
    for m, (value, score) in enumerate(zip(found.tolist(), answer.scores[:, 0].tolist(), strict=True)):
        axes.vlines(value, 0, score, color=style.line(m)["color"], linewidth=3.2)
    axes.axvline(float(answer.mean), color="black", linewidth=1, linestyle="--", label="mean")
    if len(target):
        x, crosses = target[:, 0].numpy(), {"marker": "x", "color": "black", "clip_on": False, "zorder": 3}
        axes.scatter(x, 0 * x, s=45, linewidths=1.6, label="target", **crosses)  # type: ignore[arg-type]
    behind.set(xlabel="target", xlim=(low, high), ylim=(0, None), yticks=[])
    axes.set(ylabel="score", ylim=(0, None))
    axes.yaxis.tick_left()
    axes.yaxis.set_label_position("left")
    for each in (behind, axes):
        style.tidy(each)
    style.legend(axes)
    return figure

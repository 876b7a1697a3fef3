from typing import TYPE_CHECKING, Any

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "training loss": {"loss": "loss"},
    "validation error in percent": {"oracle_error": "oracle error", "top1_error": "top-1 error"},
    "validation, in the units of the targets": {"oracle_rmse": "oracle RMSE", "rmse": "RMSE", "crps": "CRPS"},
    "validation NLL": {"nll": "NLL"},
}
PER_ROW = 3


def learning_curves(*evaluations: RunEvaluation | RegressionEvaluation) -> "Figure":
    """Plot the training loss and the metrics on the validation split over the epochs.

    For one run, metrics with the same unit share a panel. For several runs, each metric has a panel, with one line per
    run. If the values of one run would flatten those of the others, the y-axis is logarithmic above a line.
    """
    from matplotlib.ticker import MaxNLocator

    known = {name for evaluation in evaluations for row in evaluation.history for name in row}
    panels = {title: [name for name in lines if name in known] for title, lines in PANELS.items()}
    names = {name: text for lines in PANELS.values() for name, text in lines.items()}
    several = len(evaluations) > 1
    if several:
        panels = {f"{_prefix(title)}{names[name]}": [name] for title, line in panels.items() for name in line}
    panels = {title: lines for title, lines in panels.items() if lines}
    rows = -(-len(panels) // PER_ROW)
    columns = -(-len(panels) // rows)
    figure = style.new(max(4.6, 3.1 * columns), 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        curves = [
            (style.label(evaluation.name) if several else names[name], *_curve(evaluation, name))
            for evaluation in evaluations
            for name in lines
        ]
        for number, (label, epochs, values) in enumerate(curves):
            marker = "o" if len(epochs) < 12 else None
            axes.plot(epochs, values, label=label, marker=marker, markersize=3, **style.line(number))
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.tidy(axes, grid="y")
        every = [value for _, _, values in curves for value in values]
        if every and min(every) >= 0:
            axes.set_ylim(0, 1.08 * max(every) or 1)
            style.mixed_scale(axes, [sorted(values)[len(values) // 2] for _, _, values in curves if values], max(every))
        if len(curves) > 1 and not several:
            axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(-0.02, 1.08), ncols=3)
    if several:
        style.legend(grid[0])
    return figure


def _prefix(title: str) -> str:
    return "" if title.startswith("training") else "validation: "


def _curve(evaluation: RunEvaluation | RegressionEvaluation, name: str) -> tuple[list[Any], list[float]]:
    rows = [row for row in evaluation.history if isinstance(row.get(name), int | float)]
    return [row["epoch"] for row in rows], [float(row[name]) for row in rows]

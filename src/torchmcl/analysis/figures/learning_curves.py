from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "training loss": {"loss": "loss"},
    "validation, in the units of the targets": {"oracle_rmse": "oracle RMSE", "rmse": "RMSE", "crps": "CRPS"},
    "validation NLL": {"nll": "NLL"},
}


def learning_curves(evaluation: RegressionEvaluation) -> "Figure":
    """Plot the training loss and the metrics on the validation split over the epochs."""
    from matplotlib.ticker import MaxNLocator

    history = evaluation.history
    panels = [
        (title, {name: text for name, text in lines.items() if any(name in row for row in history)})
        for title, lines in PANELS.items()
    ]
    panels = [(title, lines) for title, lines in panels if lines]
    figure = style.new(max(4.6, 3.2 * len(panels)), 3.0)
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, (name, text) in enumerate(lines.items()):
            rows = [row for row in history if name in row]
            values = [row[name] for row in rows]
            axes.plot([row["epoch"] for row in rows], values, label=text, **style.line(number))
        axes.set(xlabel="epoch", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        style.tidy(axes, grid="y")
        if len(lines) > 1:
            style.legend(axes)
    return figure

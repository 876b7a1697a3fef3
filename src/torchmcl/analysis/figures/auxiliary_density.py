from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import bin_counts, density
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def auxiliary_density(evaluation: RunEvaluation) -> "Figure":
    """Plot the auxiliary probability on members' own classes, on other members' classes, and on unseen data."""
    assert evaluation.own is not None
    auxiliary = evaluation.test.get("auxiliary")
    parts = {"own classes": auxiliary[evaluation.own], "other classes": auxiliary[~evaluation.own]}
    if evaluation.unseen is not None:
        parts[f"unseen: {style.label(evaluation.unseen_name)}"] = evaluation.unseen.get("auxiliary").flatten()
    figure = style.new()
    axes = figure.subplots()
    density(axes, [(name, bin_counts(part)) for name, part in parts.items() if len(part)])
    axes.set(xlabel="probability of the auxiliary class", ylabel="density")
    style.legend(axes)
    return figure

from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import counted, density
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def auxiliary_density(evaluation: RunEvaluation) -> "Figure":
    """How probable members find "not mine" on their own classes, on others', and on unseen data."""
    assert evaluation.own is not None
    said = evaluation.test.gathered("auxiliary")
    parts = {"own classes": said[evaluation.own], "others' classes": said[~evaluation.own]}
    if evaluation.unseen is not None:
        parts[f"unseen: {style.named(evaluation.unseen_name)}"] = evaluation.unseen.gathered("auxiliary").flatten()
    figure = style.new()
    axes = figure.subplots()
    density(axes, [(name, counted(part)) for name, part in parts.items() if len(part)])
    axes.set(xlabel="probability of the auxiliary class", ylabel="density")
    return figure

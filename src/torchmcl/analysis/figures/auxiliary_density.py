from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import counted, density
from torchmcl.analysis.run_evaluation import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def auxiliary_density(look: Look) -> "Figure":
    """How probable members find "not mine" on their own classes, on others', and on unseen data."""
    assert look.own is not None
    said = look.test.gathered("auxiliary")
    parts = {"own classes": said[look.own], "others' classes": said[~look.own]}
    if look.unseen is not None:
        parts[f"unseen: {style.named(look.unseen_name)}"] = look.unseen.gathered("auxiliary").flatten()
    figure = style.new()
    axes = figure.subplots()
    density(axes, [(name, counted(part)) for name, part in parts.items() if len(part)])
    axes.set(xlabel="probability of the auxiliary class", ylabel="density")
    return figure

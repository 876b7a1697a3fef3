from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import WORST, counted, density
from torchmcl.analysis.look import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cross_entropy(*looks: Look) -> "Figure":
    """Members' cross-entropy of the truth on their own classes and on others'; a panel a kind, a line a run."""
    figure = style.new(4.6 if len(looks) == 1 else 7.0, 3.0)
    found = [(look, look.test.gathered("cross_entropy"), look.own) for look in looks]
    if len(looks) == 1:
        panels = [figure.subplots()]
        _, entropy, own = found[0]
        assert own is not None
        density(panels[0], _present(own=entropy[own], others=entropy[~own]), WORST)
    else:
        panels = list(figure.subplots(1, 2, sharey=True))
        for axes, side in zip(panels, ("own classes", "others' classes"), strict=True):
            parts = {
                style.named(look.name): counted(entropy[own if side.startswith("own") else ~own], WORST)
                for look, entropy, own in found
                if own is not None
            }
            density(axes, parts, WORST)
            axes.set_title(side)
    for axes in panels:
        axes.set_xlabel(f"cross-entropy; last bin: {WORST:g} and more")
    panels[0].set_ylabel("density")
    return figure


def _present(**parts: "object") -> dict[str, list[int]]:
    names = {"own": "own classes", "others": "others' classes"}
    return {names[name]: counted(part, WORST) for name, part in parts.items() if len(part)}  # type: ignore[arg-type]

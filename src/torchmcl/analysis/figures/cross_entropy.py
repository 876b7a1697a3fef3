from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import MAX_CROSS_ENTROPY, bin_counts, density
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = ("own classes", "other classes")


def cross_entropy(*evaluations: RunEvaluation) -> "Figure":
    """Plot the members' cross-entropy on their own and on other classes. Several runs are drawn in two panels."""
    several = len(evaluations) > 1
    figure = style.new(7.0 if several else 4.6, 3.0)
    curves = [(style.label(evaluation.name), _histograms(evaluation)) for evaluation in evaluations]
    if several:
        panels = list(figure.subplots(1, 2, sharey=True))
        for side, axes in enumerate(panels):
            density(axes, [(name, histograms[side]) for name, histograms in curves], MAX_CROSS_ENTROPY)
            axes.set_title(SIDES[side])
    else:
        panels = [figure.subplots()]
        density(panels[0], zip(SIDES, curves[0][1], strict=True), MAX_CROSS_ENTROPY)
    for axes in panels:
        axes.set_xlabel(f"cross-entropy (last bin: {MAX_CROSS_ENTROPY:g} or more)")
    panels[0].set_ylabel("density")
    style.legend(panels[0])
    return figure


def _histograms(evaluation: RunEvaluation) -> tuple[list[int], list[int]]:
    assert evaluation.own is not None
    values, own = evaluation.test.get("cross_entropy"), evaluation.own
    return bin_counts(values[own], MAX_CROSS_ENTROPY), bin_counts(values[~own], MAX_CROSS_ENTROPY)

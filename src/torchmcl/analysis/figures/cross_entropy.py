from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import WORST, counted, density
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDES = ("own classes", "others' classes")


def cross_entropy(*evaluations: RunEvaluation) -> "Figure":
    """Members' cross-entropy of the truth on their own classes and on others'; of several runs, a panel each."""
    figure = style.new(4.6 if len(evaluations) == 1 else 7.0, 3.0)
    curves = [(style.named(evaluation.name), halves(evaluation)) for evaluation in evaluations]
    if len(evaluations) == 1:
        panels = [figure.subplots()]
        density(panels[0], zip(SIDES, curves[0][1], strict=True), WORST)
    else:
        panels = list(figure.subplots(1, 2, sharey=True))
        for half, axes in enumerate(panels):
            density(axes, [(name, parts[half]) for name, parts in curves], WORST)
            axes.set_title(SIDES[half])
    for axes in panels:
        axes.set_xlabel(f"cross-entropy; last bin: {WORST:g} and more")
    panels[0].set_ylabel("density")
    return figure


def halves(evaluation: RunEvaluation) -> tuple[list[int], list[int]]:
    """Histograms of what is a member's own, and of what is not."""
    assert evaluation.own is not None
    entropy = evaluation.test.gathered("cross_entropy")
    return counted(entropy[evaluation.own], WORST), counted(entropy[~evaluation.own], WORST)

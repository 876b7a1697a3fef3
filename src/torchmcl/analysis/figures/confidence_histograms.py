from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import counted, histogram
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confidence_histograms(evaluation: RunEvaluation) -> "Figure":
    """How sure the ensemble is where it is right, where it is wrong, and of unseen data; of masks, image by image."""
    confidence, wrong = evaluation.test.gathered("confidence"), evaluation.test.gathered("wrong")
    limit = 0.5 if not evaluation.dense else float(wrong.median())
    names = ("right", "wrong") if not evaluation.dense else ("the better half", "the worse half")
    parts = {names[0]: confidence[wrong <= limit], names[1]: confidence[wrong > limit]}
    if evaluation.unseen is not None:
        parts[f"unseen: {style.named(evaluation.unseen_name)}"] = evaluation.unseen.gathered("confidence")
    parts = {f"{name} ({len(part):,})": part for name, part in parts.items() if len(part)}
    figure = style.new(4.6, 0.5 + 1.1 * len(parts))
    grid = figure.subplots(len(parts), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axes, (name, part)) in enumerate(zip(grid, parts.items(), strict=True)):
        histogram(axes, counted(part), name, number)
        axes.set_title(name, loc="left", fontsize=8.5)
        axes.set_ylabel("percent")
        axes.axvline(float(part.median()), color="black", linewidth=1, linestyle=":")
    grid[-1].set_xlabel("confidence (dotted: median)")
    return figure

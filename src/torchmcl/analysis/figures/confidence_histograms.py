from typing import TYPE_CHECKING

from torchmcl.analysis import style
from torchmcl.analysis.density import bin_counts, histogram
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def confidence_histograms(evaluation: RunEvaluation) -> "Figure":
    """Plot the ensemble's confidence on correct, incorrect and unseen examples.

    For segmentation, masks with an error up to the median and above the median replace correct and incorrect examples.
    """
    confidence, wrong = evaluation.test.get("confidence"), evaluation.test.get("wrong")
    limit = float(wrong.median()) if evaluation.dense else 0.5
    names = ("error up to the median", "error above the median") if evaluation.dense else ("correct", "incorrect")
    parts = {names[0]: confidence[wrong <= limit], names[1]: confidence[wrong > limit]}
    if evaluation.unseen is not None:
        parts[f"unseen: {style.label(evaluation.unseen_name)}"] = evaluation.unseen.get("confidence")
    parts = {f"{name} ({len(part):,})": part for name, part in parts.items() if len(part)}
    figure = style.new(4.6, 0.5 + 1.1 * len(parts))
    grid = figure.subplots(len(parts), 1, sharex=True, squeeze=False)[:, 0]
    for number, (axes, (name, part)) in enumerate(zip(grid, parts.items(), strict=True)):
        histogram(axes, bin_counts(part), name, number)
        axes.set_title(name, loc="left", fontsize=8.5)
        axes.set_ylabel("percent")
        axes.axvline(float(part.median()), color="black", linewidth=1, linestyle=":")
    grid[-1].set_xlabel("confidence (dotted: median)")
    return figure

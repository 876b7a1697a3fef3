"""Confidence in the true class, for dog and airplane (figure 2).

The study trains 2 simple CNNs on the classes dog and airplane of CIFAR-10 with K = 1. In the paper, AMCL's confidence
is near 1, and CMCL's is near 0.75.
"""

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.density import histogram
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.published import find
from torchmcl.studies.scales import SETTINGS
from torchmcl.studies.study import error_cells, error_columns, method_title, published_errors, spread
from torchmcl.studies.tables import MISSING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("amcl", "cmcl")


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """Return the specification of the run with this method."""
    return scale.spec(method, kind="confidence", members=2, k=1, seed=seed, record=["confidence"])


def runs(scale: Scale) -> list[Spec]:
    """Return 2 configurations per seed."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def classes(scale: Scale) -> list[str]:
    """Return the names of the two classes."""
    names: str = SETTINGS[scale.name]["confidence"]["data_classes"]
    return names.split(",")


def table(results: Results) -> Table:
    """Show the median confidence in the true class, and the errors."""
    names = classes(results.scale)
    by_method = {method: results.of(spec, results.scale, method) for method in METHODS}
    rows = []
    for method, own in by_method.items():
        medians = [spread([result["test"]["median_confidence"][name] for result in own], 3) for name in names]
        published = find("confidence", method=method)
        center = f"near {published.row['confidence']:g}" if published else MISSING
        rows.append((method, *medians, *error_cells(results.scale, own), center, *published_errors(published)))
    columns = ("method", *(f"confidence: {name}" for name in names), *error_columns(results.scale))
    return Table(
        "Confidence in the true class",
        (*columns, "paper confidence", "paper oracle", "paper top-1"),
        rows,
        "Median probability of the true class; errors in percent of the test set; K = 1.",
        comparisons=compare("amcl", by_method["amcl"], "cmcl", by_method["cmcl"]),
    )


def figure(results: Results) -> "Figure | None":
    """Plot histograms of the probability of the true class over all seeds."""
    figure = style.new(8, 2.8)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, name in zip(axes, classes(results.scale), strict=True):
        for number, method in enumerate(METHODS):
            if own := results.of(spec, results.scale, method):
                counts = np.sum([result["records"]["confidence"][name] for result in own], axis=0)
                histogram(axis, counts, method_title(method), number)
        axis.set(title=f"test images of {name}", xlabel="probability of the true class")
    axes[0].set_ylabel("percent of the images")
    axes[0].legend(frameon=False, loc="upper left")
    return figure

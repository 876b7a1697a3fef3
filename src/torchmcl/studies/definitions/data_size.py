"""How the distance between AMCL and IE depends on the amount of data (not in the paper).

The study trains 5 members on 2,000 to 50,000 images of CIFAR-10, a tenth of which is the validation split, with K = 1.
At `scratch`, there are at most 20,000 images, and more epochs for fewer images, so that members fit their training set.
"""

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare, paired_difference, top1_errors
from torchmcl.studies.study import error_cells, error_columns, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("ie", "amcl")
IMAGES = {"smoke": (100, 200), "mini": (2_000, 10_000), "standard": (2_000, 5_000, 10_000, 20_000, 50_000)}
EPOCHS = {"scratch": {2_000: 40, 5_000: 24, 10_000: 16, 20_000: 12}}


def images(scale: Scale) -> tuple[int, ...]:
    """Return the numbers of images."""
    return IMAGES.get(scale.name) or tuple(EPOCHS.get(scale.name, IMAGES["standard"]))


def spec(scale: Scale, count: int, method: str, *, seed: int) -> Spec:
    """Return the specification of one run."""
    k = None if method == "ie" else 1
    full = scale.spec(method, network="resnet18", data="cifar10", k=k, seed=seed)
    epochs = EPOCHS.get(scale.name, {}).get(count)
    schedule = {} if epochs is None else {"epochs": epochs, "drop_every": epochs // 3}
    return Spec({**full.options, "data_limit": None if count == 50_000 else count, **schedule}, full.record)


def runs(scale: Scale) -> list[Spec]:
    """Return 2 configurations per number of images and seed."""
    return [
        spec(scale, count, method, seed=seed) for seed in scale.seeds for count in images(scale) for method in METHODS
    ]


def table(results: Results) -> Table:
    """Show the errors for each number of images."""
    rows, compared = [], []
    for count in images(results.scale):
        by_method = {method: results.of(spec, results.scale, count, method) for method in METHODS}
        for method, own in by_method.items():
            rows.append((f"{count:,}", method, *error_cells(results.scale, own)))
        compared += compare("amcl", by_method["amcl"], "ie", by_method["ie"], f"{count:,} images: ")
    columns = ("images", "method", *error_columns(results.scale))
    about = "Percent of the test set; images: including the validation split; K = 1."
    return Table("Amount of data", columns, rows, about, comparisons=compared)


def figure(results: Results) -> "Figure | None":
    """Plot the difference in top-1 error against the amount of data and against the error of IE."""
    points = []
    for count in images(results.scale):
        ie, amcl = (results.of(spec, results.scale, count, method) for method in METHODS)
        if (difference := paired_difference(amcl, ie, top1_errors)) is not None:
            points.append((count, float(np.mean(values(ie, "top1_error"))), difference))
    if not points:
        return None
    figure = style.new(7, 2.8)
    axes = figure.subplots(1, 2, sharey=True)
    mean = [difference.value for *_, difference in points]
    half = [min(difference.high - difference.value, 20) for *_, difference in points]  # infinite for one seed
    labels = ("images of CIFAR-10", "top-1 error of IE (%)")
    for axis, label, across in zip(axes, labels, zip(*(point[:2] for point in points), strict=True), strict=True):
        axis.axhline(0, color=style.GREY, linewidth=0.8)
        axis.errorbar(across, mean, yerr=half, marker="o", capsize=3, **style.line(0))
        axis.set_xlabel(label)
        style.tidy(axis, grid="y")
    axes[0].set_xscale("log")
    axes[0].set_xticks([count for count, *_ in points], [f"{count:,}" for count, *_ in points])
    axes[0].set_xticks([], minor=True)
    axes[0].set_ylabel("top-1 error: AMCL minus IE\n(points, 95 % interval)")
    return figure

"""Auxiliary probabilities on a member's own classes, on others' classes and on unseen data (figure 3).

The study trains 5 ResNet-18 networks on CIFAR-10 with K = 1; SVHN is the unseen data. For AMCL, the memory decides
which member owns a class. For CMCL and vMCL, the owner is the member that took the most examples of the class in the
last epoch.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.analysis import style
from torchmcl.analysis.density import MAX_CROSS_ENTROPY, density
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.scales import UNSEEN
from torchmcl.studies.study import errors, method_title, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("amcl", "cmcl", "vmcl")
PARTS = ("own", "others'", "unseen")


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """Return the specification of the run with this method."""
    record = [record_name(scale)]
    return scale.spec(method, kind="auxiliary", network="resnet18", data="cifar10", k=1, seed=seed, record=record)


def record_name(scale: Scale) -> str:
    """Return the name of the additional record."""
    return f"auxiliary:{UNSEEN[scale.name]}"


def records(results: Results, method: str) -> list[dict[str, Any]]:
    """Return the additional record of each seed."""
    return [result["records"][record_name(results.scale)] for result in results.of(spec, results.scale, method)]


def runs(scale: Scale) -> list[Spec]:
    """Return 3 configurations per seed."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def table(results: Results) -> Table:
    """Show cross-entropies and auxiliary probabilities on a member's own classes and on other data."""
    rows = []
    for method in METHODS:
        own = records(results, method)
        entropy = [[one["cross_entropy"][part]["mean"] for one in own] for part in ("own", "others'")]
        cells = [spread(part) for part in entropy]
        cells.append(spread([second - first for first, second in zip(*entropy, strict=True)]))
        if method == "amcl":
            cells += [spread([one["auxiliary"][part]["median"] for one in own], 3) for part in PARTS]
            cells.append(spread([one["auroc"] for one in own], 1))
        else:
            cells += [""] * (len(PARTS) + 1)
        rows.append((method, *cells, *errors(results.of(spec, results.scale, method))))
    columns = ("method", "entropy own", "entropy others'", "margin", *(f"auxiliary {part}" for part in PARTS))
    return Table(
        "Auxiliary class and cross-entropy",
        (*columns, "AUROC unseen", "oracle", "top-1"),
        rows,
        "Entropy: mean cross-entropy on a member's own classes and on others' classes; margin: their difference; "
        "auxiliary: median auxiliary probability on own classes, others' classes and unseen data; AUROC (in percent): "
        f"separation of {UNSEEN[results.scale.name]} from the test set by the smallest auxiliary probability. The "
        "paper gives only density plots. They show that the auxiliary probability is almost as high on unseen data as "
        "on others' classes, and that the margin is largest for AMCL. K = 1.",
    )


def figure(results: Results) -> "Figure | None":
    """Plot densities of AMCL's auxiliary probability and of each method's cross-entropy on own and others' classes."""
    by_method = {method: records(results, method) for method in METHODS}
    figure = style.new(10.5, 3)
    axes = figure.subplots(1, 3)
    if by_method["amcl"]:
        curves = {part: sum_histograms([one["auxiliary"][part] for one in by_method["amcl"]]) for part in PARTS}
        density(axes[0], curves.items())
        axes[0].legend(frameon=False, fontsize=8)
    axes[0].set(title="AMCL: auxiliary probability", xlabel="probability")
    for axis, part, title in ((axes[1], "own", "own classes"), (axes[2], "others'", "others' classes")):
        curves = {
            method_title(method): sum_histograms([one["cross_entropy"][part] for one in own])
            for method, own in by_method.items()
            if own
        }
        density(axis, curves.items(), MAX_CROSS_ENTROPY)
        axis.legend(frameon=False, fontsize=8)
        axis.set(title=f"cross-entropy, {title}", xlabel="cross-entropy; last bin: 15 and more")
    axes[0].set_ylabel("density")
    return figure


def sum_histograms(parts: list[dict[str, Any]]) -> NDArray[np.int64]:
    """Add the histograms of all seeds."""
    return np.sum([part["histogram"] for part in parts], axis=0)

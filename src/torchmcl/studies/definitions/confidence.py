"""How sure the ensemble is of the truth: dog and airplane (figure 2).

CIFAR-10's dog and airplane, 2 simple CNNs, K = 1: AMCL is sure, CMCL stays near three quarters.
"""

from typing import TYPE_CHECKING

import numpy as np

from torchmcl.analysis import style
from torchmcl.analysis.density import histogram
from torchmcl.studies.published import find
from torchmcl.studies.scales import SETTINGS, Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed, spread, titled
from torchmcl.studies.tables import MISSING, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("amcl", "cmcl")


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """One method's run."""
    return scale.spec(method, kind="confidence", members=2, k=1, seed=seed, record=["confidence"])


def runs(scale: Scale) -> list[Spec]:
    """2 configurations."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def classes(scale: Scale) -> list[str]:
    """The two classes."""
    named: str = SETTINGS[scale.name]["confidence"]["data_classes"]
    return named.split(",")


def table(results: Results) -> Table:
    """Median confidence in the truth of each class, and errors."""
    names = classes(results.scale)
    by_method = {method: results.of(spec, results.scale, method) for method in METHODS}
    rows = []
    for method, found in by_method.items():
        medians = [spread([result["test"]["median_confidence"][name] for result in found], 3) for name in names]
        known = find("confidence", method=method)
        centre = f"near {known.row['confidence']:g}" if known else MISSING
        rows.append((method, *medians, *errors(found), centre, *printed(known)))
    columns = ("method", *(f"confidence: {name}" for name in names), "oracle", "top-1")
    return Table(
        "Confidence in the truth",
        (*columns, "paper confidence", "paper oracle", "paper top-1"),
        rows,
        "Median probability of the truth; errors in percent of the test set; K = 1.",
        compare("amcl", by_method["amcl"], "cmcl", by_method["cmcl"]),
    )


def figure(results: Results) -> "Figure | None":
    """Histograms of the truth's probability, all seeds together."""
    made = style.new(8, 2.8)
    axes = made.subplots(1, 2, sharey=True)
    for axis, name in zip(axes, classes(results.scale), strict=True):
        for number, method in enumerate(METHODS):
            found = results.of(spec, results.scale, method)
            if not found:
                continue
            counts = np.sum([result["records"]["confidence"][name] for result in found], axis=0)
            histogram(axis, counts, titled(method), number)
        axis.set(title=f"test images of {name}", xlabel="probability of the truth")
    axes[0].set_ylabel("percent of the images")
    axes[0].legend(frameon=False, loc="upper left")
    return made

"""Assignment of classes to members up to epoch 1, epoch 10 and the last epoch (figure 5).

The study trains simple CNNs on CIFAR-10 with K = 1 and fixes the memory after 10 epochs. The members' shares of each
class are computed from the loss-based assignments (v in eq. 5), summed over all epochs up to the given one. For AMCL,
these assignments are counted even after the memory is fixed.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.analysis import style
from torchmcl.analysis.figures.assignment_ratios import bars
from torchmcl.analysis.figures.assignment_ratios import ratios as ratios_of
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.scales import FLOW_WARMUP
from torchmcl.studies.store import Result
from torchmcl.studies.study import errors, method_title, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("cmcl", "vmcl", "amcl")


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """Return the specification of the run with this method."""
    warmup = FLOW_WARMUP[scale.name] if method == "amcl" else None
    return scale.spec(method, network="simple_cnn", data="cifar10", k=1, warmup=warmup, seed=seed, record=["flow"])


def runs(scale: Scale) -> list[Spec]:
    """Return 3 configurations per seed."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def ratios(result: Result) -> dict[int, NDArray[np.float64]]:
    """Return the members' shares of each class (classes, M) up to epoch 1, up to epoch 10 and up to the last epoch."""
    return ratios_of(result["records"]["flow"])


def purity(result: Result, epochs: slice) -> float:
    """Return the percentage of assignments in `epochs` that went to the member with the most examples of the class."""
    sums = np.sum(result["records"]["flow"][epochs], axis=0)
    return float(100 * sums.max(1).sum() / sums.sum())


def table(results: Results) -> Table:
    """Show the purity up to epoch 1, up to epoch 10, over all epochs and in the last epoch."""
    by_method = {method: results.of(spec, results.scale, method) for method in METHODS}
    first = next((result for own in by_method.values() for result in own), None)
    epochs = list(ratios(first)) if first is not None else [1, 10]
    parts = [*(slice(epoch) for epoch in epochs), slice(-1, None)]
    rows = [
        (method, *(spread([purity(result, part) for result in own], 1) for part in parts), *errors(own))
        for method, own in by_method.items()
    ]
    columns = ("method", *(f"purity up to epoch {epoch}" for epoch in epochs), "last epoch only", "oracle", "top-1")
    about = (
        "Purity: percentage of the loss-based assignments in which an example went to the member that took its class "
        "most often. The paper shows the assignment ratio of each class and member, not the purity. "
        f"K = 1; AMCL's memory is fixed after epoch {FLOW_WARMUP[results.scale.name]}."
    )
    return Table("Assignment of classes to members", columns, rows, about)


def figure(results: Results) -> "Figure | None":
    """Plot each member's share of each class for the first seed, with one bar per class and one colour per member."""
    by_method = {method: own[0] for method in METHODS if (own := results.of(spec, results.scale, method))}
    if not by_method:
        return None
    epochs = list(ratios(next(iter(by_method.values()))))
    figure = style.new(3.1 * len(epochs) + 0.8, 2.5 * len(by_method))
    grid = figure.subplots(len(by_method), len(epochs), squeeze=False, sharey="row")
    handles: list[Any] = []
    for axes, (method, result) in zip(grid, by_method.items(), strict=True):
        for axis, (epoch, ratio) in zip(axes, ratios(result).items(), strict=True):
            handles = bars(axis, ratio, result["groups"])
            axis.set_title(f"{method_title(method)}, epoch {epoch}")
            style.tidy(axis)
    names = [f"member {m + 1}" for m in range(len(handles))]
    figure.legend(handles, names, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return figure

"""Which member takes which class, at epochs 1, 10 and the last (figure 5).

Simple CNNs on CIFAR-10, K = 1, the memory fixed after 10 epochs. Ratios of the sums up to an epoch of who takes an
example by loss, v of eq. 5; for AMCL also once the memory decides instead.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.analysis import style
from torchmcl.analysis.figures.assignment_ratios import bars
from torchmcl.analysis.figures.assignment_ratios import ratios as ratios_of
from torchmcl.studies.scales import FLOW_WARMUP, Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result
from torchmcl.studies.study import Results, errors, spread, titled
from torchmcl.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("cmcl", "vmcl", "amcl")


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """One method's run."""
    warmup = FLOW_WARMUP[scale.name] if method == "amcl" else None
    return scale.spec(method, network="simple_cnn", data="cifar10", k=1, warmup=warmup, seed=seed, record=["flow"])


def runs(scale: Scale) -> list[Spec]:
    """3 configurations."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def ratios(result: Result) -> dict[int, NDArray[np.float64]]:
    """Within-class ratios (classes, M) of the sums up to epochs 1, 10 and the last."""
    return ratios_of(result["records"]["flow"])


def purity(result: Result, epoch: int) -> float:
    """Percent of the assignments up to an epoch that went to the member that has most of its class."""
    sums = np.sum(result["records"]["flow"][:epoch], axis=0)
    return float(100 * sums.max(1).sum() / sums.sum())


def alone(result: Result) -> float:
    """Purity of the last epoch by itself."""
    last = np.asarray(result["records"]["flow"][-1])
    return float(100 * last.max(1).sum() / last.sum())


def table(results: Results) -> Table:
    """Purity at each of the epochs."""
    found = {method: results.of(spec, results.scale, method) for method in METHODS}
    some = next((one for of_method in found.values() for one in of_method), None)
    epochs = list(ratios(some)) if some is not None else [1, 10]
    rows = [
        (
            method,
            *(spread([purity(result, epoch) for result in own], 1) for epoch in epochs),
            spread([alone(result) for result in own], 1),
            *errors(own),
        )
        for method, own in found.items()
    ]
    columns = ("method", *(f"purity to epoch {epoch}" for epoch in epochs), "last epoch alone", "oracle", "top-1")
    about = (
        "Percent of the loss-based assignments that went to the member that has most of its class. The paper shows the "
        f"ratios alone. K = 1; AMCL's memory is fixed after epoch {FLOW_WARMUP[results.scale.name]}."
    )
    return Table("Which member takes which class", columns, rows, about)


def figure(results: Results) -> "Figure | None":
    """Within-class ratios of the first seed: a bar for each class, a colour for each member."""
    found = {method: own[0] for method in METHODS if (own := results.of(spec, results.scale, method))}
    if not found:
        return None
    epochs = list(ratios(next(iter(found.values()))))
    made = style.new(3.1 * len(epochs) + 0.8, 2.5 * len(found))
    grid = made.subplots(len(found), len(epochs), squeeze=False, sharey="row")
    handles: list[Any] = []
    for axes, (method, result) in zip(grid, found.items(), strict=True):
        for axis, (epoch, ratio) in zip(axes, ratios(result).items(), strict=True):
            handles = bars(axis, ratio, result["groups"])
            axis.set_title(f"{titled(method)}, epoch {epoch}")
            style.tidy(axis)
    names = [f"member {m + 1}" for m in range(len(handles))]
    made.legend(handles, names, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return made

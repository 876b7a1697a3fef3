"""What the auxiliary class knows: own classes, others' classes, unseen data (figure 3).

CIFAR-10, 5 ResNet-18, K = 1, SVHN unseen. Whose a class is: the memory says it for AMCL; for CMCL and vMCL it is the
member that took it most in the last epoch.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.analysis import style
from torchmcl.analysis.density import MAX_CROSS_ENTROPY, density
from torchmcl.studies.scales import UNSEEN, Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, errors, spread, titled
from torchmcl.studies.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("amcl", "cmcl", "vmcl")
PARTS = ("own", "others'", "unseen")


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """One method's run."""
    record = [asked(scale)]
    return scale.spec(method, kind="auxiliary", network="resnet18", data="cifar10", k=1, seed=seed, record=record)


def asked(scale: Scale) -> str:
    """What is recorded."""
    return f"auxiliary:{UNSEEN[scale.name]}"


def runs(scale: Scale) -> list[Spec]:
    """3 configurations."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def table(results: Results) -> Table:
    """Cross-entropy and auxiliary probability on what is a member's own and what is not."""
    rows = []
    for method in METHODS:
        found = results.of(spec, results.scale, method)
        told = [result["records"][asked(results.scale)] for result in found]
        entropy = [[one["cross_entropy"][part]["mean"] for one in told] for part in ("own", "others'")]
        margin = spread([other - own for own, other in zip(*entropy, strict=True)])
        sure = [
            spread([one["auxiliary"][part]["median"] for one in told], 3) if method == "amcl" else "" for part in PARTS
        ]
        auroc = spread([one["auroc"] for one in told], 1) if method == "amcl" else ""
        rows.append((method, *(spread(part) for part in entropy), margin, *sure, auroc, *errors(found)))
    columns = ("method", "entropy own", "entropy others'", "margin", *(f"auxiliary {part}" for part in PARTS))
    return Table(
        "What the auxiliary class knows",
        (*columns, "AUROC unseen", "oracle", "top-1"),
        rows,
        "Mean cross-entropy of the truth over members and test examples of a member's own and of others' classes; "
        f"median auxiliary probability; AUROC in percent of telling {UNSEEN[results.scale.name]} from the test set by "
        "the least auxiliary probability. The paper shows densities alone: unseen almost as high as others', and the "
        "largest margin for AMCL. K = 1.",
    )


def figure(results: Results) -> "Figure | None":
    """Density of the auxiliary probability under AMCL; density of the cross-entropy by method, on own and others'."""
    told = {
        method: [result["records"][asked(results.scale)] for result in results.of(spec, results.scale, method)]
        for method in METHODS
    }
    made = style.new(10.5, 3)
    axes = made.subplots(1, 3)
    if told["amcl"]:
        curves = {part: sum_of([one["auxiliary"][part] for one in told["amcl"]]) for part in PARTS}
        density(axes[0], curves.items())
    axes[0].set(title="AMCL: auxiliary probability", xlabel="probability")
    for axis, part, title in ((axes[1], "own", "own classes"), (axes[2], "others'", "others' classes")):
        curves = {
            titled(method): sum_of([one["cross_entropy"][part] for one in of_method])
            for method, of_method in told.items()
            if of_method
        }
        density(axis, curves.items(), MAX_CROSS_ENTROPY)
        axis.set(title=f"cross-entropy, {title}", xlabel="cross-entropy; last bin: 15 and more")
    axes[0].set_ylabel("density")
    return made


def sum_of(parts: list[dict[str, Any]]) -> NDArray[np.int64]:
    """The histograms of all seeds as one."""
    return np.sum([part["histogram"] for part in parts], axis=0)

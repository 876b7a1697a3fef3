"""Contribution of the auxiliary class, the memory and feature fusion (table 1).

The study trains 5 ResNet-18 networks on CIFAR-10 with K = 1, which is inferred from sMCL's published
top-1 error of 57 %. CMCL and vMCL keep their own exchanges (feature sharing and weight sharing, respectively).
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.published import find
from torchmcl.studies.study import check_mark, compare_all, errors, published_errors, purity_cell

ROWS = (  # method, memory, fusion
    ("ie", False, False),
    ("smcl", False, False),
    ("cmcl", False, False),
    ("vmcl", False, False),
    ("amcl", False, False),
    ("amcl", True, False),
    ("amcl", False, True),
    ("amcl", True, True),
)


def spec(scale: Scale, method: str, memory: bool, fusion: bool, *, seed: int) -> Spec:
    """Return the specification of the run for one row."""
    own: dict[str, Any] = {"memory": memory, "exchange": None if fusion else "none"} if method == "amcl" else {}
    k = None if method == "ie" else 1
    return scale.spec(method, network="resnet18", data="cifar10", k=k, seed=seed, **own)


def runs(scale: Scale) -> list[Spec]:
    """Return 8 configurations per seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in ROWS]


def table(results: Results) -> Table:
    """Show the errors with and without each component."""
    rows = []
    for method, memory, fusion in ROWS:
        own = results.of(spec, results.scale, method, memory, fusion)
        published = find("ablation", method=method, memory=memory, fusion=fusion)
        marks = check_mark(memory), check_mark(fusion)
        rows.append((method, *marks, *errors(own), purity_cell(own), *published_errors(published)))
    columns = ("method", "memory", "fusion", "oracle", "top-1", "purity", "paper oracle", "paper top-1")
    compared = {method: (method, *parts) for method, *parts in ROWS if method != "amcl"}
    compared |= {"amcl without memory": ("amcl", False, True), "amcl without fusion": ("amcl", True, False)}
    compared["amcl"] = ("amcl", True, True)
    notes = compare_all("amcl", {name: results.of(spec, results.scale, *row) for name, row in compared.items()})
    return Table("Contribution of each component of AMCL", columns, rows, "Percent of the test set; K = 1.", notes)

"""Contribution of the auxiliary class, the memory and feature fusion (table 1).

The study trains 5 ResNet-18 networks on CIFAR-10 with K = 1, which is inferred from sMCL's published
top-1 error of 57 %. CMCL and vMCL keep their own exchanges (feature sharing and weight sharing, respectively).
At `standard`, members share a frozen network and exchange nothing else, so there are no rows with feature fusion. At
`standard` and `scratch`, there are two more rows: a single network, and AMCL with a warm-up of 5 epochs instead of 5 %
of the epochs.
"""

from collections.abc import Mapping
from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.published import find
from torchmcl.studies.study import check_mark, error_cells, error_columns, published_errors, purity_cell

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
MEMBERS = 5
Row = tuple[str, bool, bool, Mapping[str, Any]]


def rows(scale: Scale) -> dict[str, Row]:
    """Return the method, the memory, the fusion and further options of each row."""
    published: dict[str, Row] = {
        label(method, memory, fusion or scale.transfer): (method, memory, fusion, {})
        for method, memory, fusion in ROWS
        if not (fusion and scale.transfer)
    }
    if not scale.protocol:
        return published
    alone: dict[str, Row] = {"one network": ("ie", False, False, {"members": 1, "record": (f"top_m:{MEMBERS}",)})}
    return alone | published | {"amcl, warm-up of 5 epochs": ("amcl", True, not scale.transfer, {"warmup": 5})}


def label(method: str, memory: bool, fusion: bool) -> str:
    """Return the name of a row in comparisons."""
    absent = [part for part, present in (("memory", memory), ("fusion", fusion)) if not present]
    return f"amcl without {' and '.join(absent)}" if method == "amcl" and absent else method


def spec(scale: Scale, method: str, memory: bool, fusion: bool, more: Mapping[str, Any], *, seed: int) -> Spec:
    """Return the specification of the run for one row."""
    own: dict[str, Any] = {"memory": memory, "exchange": None if fusion else "none"} if method == "amcl" else {}
    k = None if method == "ie" else 1
    return scale.spec(method, network="resnet18", data="cifar10", k=k, seed=seed, **own, **more)


def runs(scale: Scale) -> list[Spec]:
    """Return 8 configurations per seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale).values()]


def table(results: Results) -> Table:
    """Show the errors with and without each component."""
    cells, by_name = [], {}
    for name, (method, memory, fusion, more) in rows(results.scale).items():
        own = by_name[name] = results.of(spec, results.scale, method, memory, fusion, more)
        published = None if more else find("ablation", method=method, memory=memory, fusion=fusion)
        line = (name if more else method, check_mark(memory), check_mark(fusion), *error_cells(results.scale, own))
        cells.append((*line, purity_cell(own), *published_errors(published)))
    columns = ("method", "memory", "fusion", *error_columns(results.scale), "purity", "paper oracle", "paper top-1")
    about, compared = "Percent of the test set; K = 1.", compare_all("amcl", by_name)
    return Table("Contribution of each component of AMCL", columns, cells, about, comparisons=compared)

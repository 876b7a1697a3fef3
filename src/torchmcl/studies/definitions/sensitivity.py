"""Sensitivity to parameters that papers do not specify (not in the paper).

The study trains 5 members on CIFAR-10 with K = 1, at half and at double the value of each parameter that is marked [I]
in the documentation of a method. All runs have the same learning rate and weight decay at scales with a grid.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.study import error_cells, error_columns

PARAMETERS: dict[tuple[str, str], tuple[Any, ...]] = {  # half the value, the default and double the value, at most 95 %
    ("mcl", "round"): (2, 5, 10),
    ("annealed", "cooling"): ("40%", "80%", "95%"),
    ("mcl_kd", "pretrain"): ("15%", "30%", "60%"),
    ("emadnn", "weight"): (0.05, 0.1, 0.2),
    ("vmcl", "eta"): (0.5, 1.0, 2.0),
}
SETTING = {"learning_rate": 0.003, "weight_decay": 0.5}


def spec(scale: Scale, method: str, parameter: str, value: Any, *, seed: int) -> Spec:
    """Return the specification of one run."""
    k = None if method == "emadnn" else 1
    full = scale.spec(method, network="resnet18", data="cifar10", k=k, seed=seed)
    setting: dict[str, Any] = SETTING if scale.grid else {}
    return Spec({**full.options, "decay": None, parameter: value, **setting}, full.record)


def rows(scale: Scale) -> list[tuple[str, str, Any]]:
    """Return the method, the parameter and its value of each row."""
    return [(*name, value) for name, values in PARAMETERS.items() for value in scale.subset(values)]


def runs(scale: Scale) -> list[Spec]:
    """Return 15 configurations per seed, or fewer if durations are equal after rounding to epochs."""
    specs = [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]
    return list({one.hash: one for one in specs}.values())


def table(results: Results) -> Table:
    """Show the errors for each value, and compare them with those of the default."""
    cells, compared = [], []
    for method, parameter, value in rows(results.scale):
        own = results.of(spec, results.scale, method, parameter, value)
        default = PARAMETERS[method, parameter][1]
        cells.append((method, parameter, str(value), *error_cells(results.scale, own)))
        if value != default:
            usual = results.of(spec, results.scale, method, parameter, default)
            compared += compare(f"{method}, {parameter} {value}", own, str(default), usual)
    columns = ("method", "parameter", "value", *error_columns(results.scale))
    about = "Percent of the test set; K = 1. The middle value of each parameter is its default."
    return Table("Sensitivity to inferred parameters", columns, cells, about, comparisons=compared)

"""Errors and densities on small tables with one number or three numbers to predict (not in the paper).

The study trains on diabetes, linnerud, Boston housing and auto-mpg with twenty random splits, a tenth of the examples
for testing. Members have a hidden layer of 32 units of their own on a shared one.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.statistics import paired_seeds
from torchmcl.studies.study import spread, values

DATA = {"diabetes": 1, "linnerud": 3, "boston-housing": 1, "auto-mpg": 1}  # the numbers of target values D
MEMBERS = 5
HYPOTHESES = {"score": "bce"}
RIVAL = "independent ensemble"
# With a constant temperature of 1 (in units of the sum over D, 1 / D of the mean), annealed weights are the
# responsibilities of a mixture whose weights are the scores; see `tasks.regression.Weighted`.
METHODS: dict[str, dict[str, Any]] = {
    "one network": {"method": "ie", "members": 1, "loss": "gaussian"},
    RIVAL: {"method": "ie", "loss": "gaussian", "exchange": "none"},
    "mixture density network": {"method": "annealed", "decay": 1.0, "loss": "gaussian", "score": "mdn"},
    "smcl": {"method": "smcl", **HYPOTHESES},
    "annealed": {"method": "annealed", **HYPOTHESES},
}
METRICS = {"RMSE": "rmse", "distortion": "oracle_rmse", "NLL": "nll", "CRPS": "crps"}


def spec(scale: Scale, data: str, name: str, *, seed: int) -> Spec:
    """Return the specification of one run."""
    own = {"members": MEMBERS, **METHODS[name]}
    if name == "mixture density network":
        own["start"] = 1 / DATA[data]
    full = scale.spec(kind="tables", data=data, seed=seed, **own)
    return Spec({**full.options, **{name: own[name] for name in ("exchange",) if name in own}}, full.record)


def runs(scale: Scale) -> list[Spec]:
    """Return 5 configurations per data set and split."""
    sets = scale.data_sets(tuple(DATA))
    return [spec(scale, data, name, seed=seed) for seed in scale.seeds for data in sets for name in METHODS]


def cells(results: Results, data: str, name: str) -> list[list[float]]:
    """Return the values of each metric for all splits."""
    own = results.of(spec, results.scale, data, name)
    found = {metric: values(own, entry) for metric, entry in METRICS.items()}
    found["distortion"] = [DATA[data] * error**2 for error in found["distortion"]]
    return list(found.values())


def table(results: Results) -> Table:
    """Show the errors and scores, and the paired differences in RMSE and NLL from the independent ensemble."""
    rows = []
    for data in results.scale.data_sets(tuple(DATA)):
        rival = cells(results, data, RIVAL)
        for name in METHODS:
            own = cells(results, data, name)
            compared = [difference(own[at], rival[at]) if name != RIVAL else "" for at in (0, 2)]
            rows.append((data, name, *(spread(one, 2) for one in own), *compared))
    columns = ("data", "method", *METRICS, "RMSE minus IE", "NLL minus IE")
    about = (
        f"Units of the targets; M = {MEMBERS}, except for one network. distortion: squared distance of the closest "
        "hypothesis. NLL: with a predicted scale for one network, the independent ensemble and the mixture density "
        "network, otherwise kernels on the Voronoi cells, with the bandwidth chosen on the validation split. minus "
        "IE: mean over paired splits with a 95 % t interval, * if clear (see the comparisons in docs/studies.md)."
    )
    return Table("Tables with numbers to predict", columns, rows, about)


def difference(one: list[float], two: list[float]) -> str:
    """Return the cell for the mean difference of paired values with its 95 % interval.

    >>> difference([3.0, 4.0, 3.0, 5.0, 4.0, 3.0], [2.0, 2.0, 2.0, 3.0, 3.0, 1.0])
    '+1.50 [+0.93, +2.07] *'
    """
    if not one or len(one) != len(two):
        return ""
    found = paired_seeds(one, two)
    text = f"{found.value:+.2f}" + (f" [{found.low:+.2f}, {found.high:+.2f}]" if found.seeds > 1 else "")
    return text + " *" * found.clear

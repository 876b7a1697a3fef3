"""Comparison of all registered methods and balanced memory in one setting (not in the paper).

The study trains 5 ResNet-18 networks on CIFAR-10 with the published or inferred defaults of every method. For methods
with K, K is 1 or 2 and is chosen on the validation split. No other option is tuned.
"""

from typing import Any

import numpy as np

from torchmcl import methods
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.study import error_cells, error_columns, k_cell, purity_cell, spread, values
from torchmcl.studies.tables import MISSING

BALANCED = "amcl balanced"
OVERLAPS = (1, 2)


def candidates() -> tuple[str, ...]:
    """Return every registered method, and AMCL with balanced memory."""
    return (*methods.names(), BALANCED)


def has_k(name: str) -> bool:
    """Return whether K determines how many members take an example."""
    return name == BALANCED or (method := methods.build(name)).k != method.members


def spec(scale: Scale, name: str, k: int | None, *, seed: int) -> Spec:
    """Return the specification of one run."""
    own: dict[str, Any] = {"balance": True} if name == BALANCED else {}
    method = "amcl" if name == BALANCED else name
    return scale.spec(method, kind="choice", network="resnet18", data="cifar10", k=k, seed=seed, **own)


def overlaps(name: str) -> tuple[int | None, ...]:
    """Return the values of K to choose from."""
    return OVERLAPS if has_k(name) else (None,)


def runs(scale: Scale) -> list[Spec]:
    """Return 24 configurations per seed."""
    return [spec(scale, name, k, seed=seed) for seed in scale.seeds for name in candidates() for k in overlaps(name)]


def table(results: Results) -> Table:
    """Show all methods, ordered by the harmonic mean of oracle and top-1 error on the test set."""
    chosen = {}
    for name in candidates():
        own = {k: results.of(spec, results.scale, name, k) for k in overlaps(name)}
        k = results.best(own) if has_k(name) else None
        chosen[name] = (k, own.get(k, []))
    order = sorted(candidates(), key=lambda name: np.mean(values(chosen[name][1], "harmonic_mean") or [np.inf]))
    rows = []
    for name in order:
        k, of_name = chosen[name]
        digits = {"harmonic_mean": 2, "nll": 3, "ece": 1}
        metrics = [spread(values(of_name, metric), count) for metric, count in digits.items()]
        parameters = f"{of_name[0]['parameters']:,}" if of_name else MISSING
        cells = [*error_cells(results.scale, of_name), *metrics, purity_cell(of_name), parameters]
        rows.append((name, k_cell(k, has_k=has_k(name)), *cells))
    more = ("harmonic mean", "NLL", "ECE", "purity", "parameters")
    columns = ("method", "K", *error_columns(results.scale), *more)
    about = f"Percent of the test set, except NLL; K chosen by the harmonic mean on {results.chosen_on}."
    compared = compare_all(order[0], {name: chosen[name][1] for name in order})
    return Table("Leaderboard", columns, rows, about, comparisons=compared)

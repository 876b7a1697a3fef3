"""Comparison of all registered methods and balanced memory in one setting (not in the paper).

The study trains 5 ResNet-18 networks on CIFAR-10 with the published or inferred defaults of every method. For methods
with K, K is 1 or 2 and is chosen on the validation split. No other option is tuned.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from torchmcl import methods
from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.error_figures import errors_against_cost
from torchmcl.studies.store import Result
from torchmcl.studies.study import error_cells, error_columns, k_cell, purity_cell, spread, values
from torchmcl.studies.tables import MISSING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BALANCED = "amcl balanced"
SINGLE = "one network"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    BALANCED: ("amcl", {"balance": True}),
    SINGLE: ("ie", {"members": 1}),
}
OVERLAPS = (1, 2)


def candidates(scale: Scale) -> tuple[str, ...]:
    """Return every registered method, AMCL with balanced memory and, at scales that measure the cost, one network."""
    return (*methods.names(), BALANCED, *((SINGLE,) if scale.protocol else ()))


def has_k(name: str) -> bool:
    """Return whether K determines how many members take an example."""
    return (method := methods.build(VARIANTS.get(name, (name,))[0])).k != method.members


def spec(scale: Scale, name: str, k: int | None, *, seed: int) -> Spec:
    """Return the specification of one run."""
    method, own = VARIANTS.get(name, (name, {}))
    return scale.spec(method, kind="choice", network="resnet18", data="cifar10", k=k, seed=seed, **own)


def overlaps(name: str) -> tuple[int | None, ...]:
    """Return the values of K to choose from."""
    return OVERLAPS if has_k(name) else (None,)


def runs(scale: Scale) -> list[Spec]:
    """Return 24 configurations per seed, or 25 with one network."""
    return [
        spec(scale, name, k, seed=seed) for seed in scale.seeds for name in candidates(scale) for k in overlaps(name)
    ]


def best_overlaps(results: Results) -> dict[str, tuple[int | None, list[Result]]]:
    """Return, for each candidate, the chosen K and its results."""
    chosen = {}
    for name in candidates(results.scale):
        own = {k: results.of(spec, results.scale, name, k) for k in overlaps(name)}
        k = results.best(own) if has_k(name) else None
        chosen[name] = (k, own.get(k, []))
    return chosen


def table(results: Results) -> Table:
    """Show all methods, ordered by the harmonic mean of oracle and top-1 error on the test set."""
    chosen = best_overlaps(results)
    order = sorted(chosen, key=lambda name: np.mean(values(chosen[name][1], "harmonic_mean") or [np.inf]))
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


def figure(results: Results) -> "Figure | None":
    """Plot the errors of all methods against the cost of a training step."""
    return errors_against_cost({name: own for name, (_, own) in best_overlaps(results).items()})

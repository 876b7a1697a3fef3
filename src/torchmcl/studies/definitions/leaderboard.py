"""All methods of the registry on one protocol, balanced memory among them; beyond the paper.

CIFAR-10, 5 ResNet-18, every method with its published or inferred defaults; K of 1 and 2 is chosen on the validation
split where a method has one. Nothing is tuned.
"""

from typing import Any

import numpy as np

from torchmcl import methods
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, pure, spread, values
from torchmcl.studies.tables import MISSING, Table

BALANCED = "amcl balanced"
OVERLAPS = (1, 2)


def contenders() -> tuple[str, ...]:
    """Every method of the registry, and AMCL with a balanced memory."""
    return (*methods.names(), BALANCED)


def without_k(name: str) -> bool:
    """Whether every member takes every example, whatever K."""
    return name != BALANCED and (method := methods.build(name)).k == method.members


def spec(scale: Scale, name: str, k: int | None, *, seed: int) -> Spec:
    """One run."""
    own: dict[str, Any] = {"balance": True} if name == BALANCED else {}
    method = "amcl" if name == BALANCED else name
    return scale.spec(method, kind="choice", network="resnet18", data="cifar10", k=k, seed=seed, **own)


def overlaps(name: str) -> tuple[int | None, ...]:
    """The values of K among which is chosen."""
    return (None,) if without_k(name) else OVERLAPS


def runs(scale: Scale) -> list[Spec]:
    """24 configurations."""
    return [spec(scale, name, k, seed=seed) for seed in scale.seeds for name in contenders() for k in overlaps(name)]


def table(results: Results) -> Table:
    """All methods, the least harmonic mean of oracle and top-1 error on the test set first."""
    chosen = {}
    for name in contenders():
        own = {k: results.of(spec, results.scale, name, k) for k in overlaps(name)}
        k = None if without_k(name) else results.best(own)
        chosen[name] = (k, own.get(k, []))
    order = sorted(contenders(), key=lambda name: np.mean(values(chosen[name][1], "harmonic_mean") or [np.inf]))
    rows = []
    for name in order:
        k, found = chosen[name]
        metrics = [
            spread(values(found, figure), digits) for figure, digits in (("harmonic_mean", 2), ("nll", 3), ("ece", 1))
        ]
        count = f"{found[0]['parameters']:,}" if found else MISSING
        named = "" if without_k(name) else MISSING if k is None else str(k)
        rows.append((name, named, *errors(found), *metrics, pure(found), count))
    columns = ("method", "K", "oracle", "top-1", "harmonic mean", "NLL", "ECE", "purity", "parameters")
    about = f"Percent of the test set but for NLL; K chosen by the harmonic mean on {results.chosen_on}."
    best = order[0]
    notes = [
        note
        for other in order[1:]
        for note in compare(best, chosen[best][1], other, chosen[other][1])
        if chosen[best][1]
    ]
    return Table("Leaderboard", columns, rows, about, notes)

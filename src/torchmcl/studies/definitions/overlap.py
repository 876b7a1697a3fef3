"""How many members take each example: K (table 7).

5 GoogLeNets on CIFAR-10, CIFAR-100 and Tiny-ImageNet. The K of each method is chosen by the harmonic mean of oracle and
top-1 error on the validation split.
"""

from typing import Any

from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed, spread, tick, values
from torchmcl.studies.tables import Table

DATA = ("cifar10", "cifar100", "tiny-imagenet")
METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl")
OVERLAPS = (1, 2, 3, 4)


def spec(scale: Scale, data: str, method: str, k: int | None, *, seed: int) -> Spec:
    """One row's run."""
    return scale.spec(method, kind="choice", network="googlenet", data=data, k=k, seed=seed)


def rows(scale: Scale) -> list[tuple[str, str, int | None]]:
    """Data, method, K."""
    overlaps = scale.overlaps(OVERLAPS)
    return [
        (data, method, k)
        for data in scale.data_sets(DATA)
        for method in METHODS
        for k in (overlaps if method != "ie" else (None,))
    ]


def runs(scale: Scale) -> list[Spec]:
    """17 configurations a data set."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def table(results: Results) -> Table:
    """Errors by method and K; the chosen K is marked. AMCL with every K against IE, with its own against others'."""
    made, notes = [], []
    for data in results.scale.data_sets(DATA):
        own = {(method, k): results.of(spec, results.scale, data, method, k) for _, method, k in rows_of(results, data)}
        shown = spec(results.scale, data, "ie", None, seed=0).options["data"]
        chosen = {method: results.best({at: own[at] for at in own if at[0] == method}) for method in METHODS}
        for (method, k), found in own.items():
            known = find("overlap", method=method, K=k, dataset=data)
            harmonic = spread(values(found, "harmonic_mean"))
            mark = tick(method != "ie" and chosen[method] == (method, k))
            made.append((shown, method, "" if k is None else str(k), *errors(found), harmonic, mark, *printed(known)))
        pairs: list[tuple[Any, Any]] = [(("amcl", k), ("ie", None)) for k in results.scale.overlaps(OVERLAPS)]
        pairs += [(chosen["amcl"], chosen[method]) for method in METHODS[1:-1]]
        for one, two in pairs:
            if one is not None and two is not None:
                notes += [f"{shown}: {note}" for note in compare(said(*one), own[one], said(*two), own[two])]
    columns = ("data", "method", "K", "oracle", "top-1", "harmonic mean", "chosen", "paper oracle", "paper top-1")
    about = f"Percent of the test set; K chosen by the harmonic mean on {results.chosen_on}."
    return Table("Overlap K", columns, made, about, notes)


def said(method: str, k: int | None) -> str:
    """A row, in a note.

    >>> said("amcl", 2), said("ie", None)
    ('amcl K = 2', 'ie')
    """
    return method if k is None else f"{method} K = {k}"


def rows_of(results: Results, data: str) -> list[tuple[str, str, int | None]]:
    """The rows of one data set."""
    return [row for row in rows(results.scale) if row[0] == data]

"""Number K of members that take each example (table 7).

The study trains 5 GoogLeNets on CIFAR-10, CIFAR-100 and Tiny-ImageNet. K is chosen for each method by the harmonic mean
of oracle and top-1 error on the validation split.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.error_figures import errors_against
from torchmcl.studies.published import find
from torchmcl.studies.study import (
    check_mark,
    error_cells,
    error_columns,
    method_title,
    published_errors,
    spread,
    values,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = ("cifar10", "cifar100", "tiny-imagenet")
METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl")
OVERLAPS = (1, 2, 3, 4)


def spec(scale: Scale, data: str, method: str, k: int | None, *, seed: int) -> Spec:
    """Return the specification of the run for one row."""
    return scale.spec(method, kind="choice", network="googlenet", data=data, k=k, seed=seed)


def rows(
    scale: Scale, data_sets: Sequence[str] = DATA, overlaps: Sequence[int] = OVERLAPS, members: int = 5
) -> list[tuple[str, str, int | None]]:
    """Return the data set, the method and K of each row."""
    return [
        (data, method, k)
        for data in scale.data_sets(data_sets)
        for method in METHODS
        for k in (scale.up_to_members(overlaps, members) if method != "ie" else (None,))
    ]


def runs(scale: Scale) -> list[Spec]:
    """Return 17 configurations per data set and seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def table(results: Results) -> Table:
    """Show the errors of each method and K, and mark the chosen K.

    AMCL is compared with IE and with K = 1 for every K, and with the other methods for the chosen values of K.
    """
    cells, compared, scale = [], [], results.scale
    for data in scale.data_sets(DATA):
        own = {(method, k): results.of(spec, scale, data, method, k) for _, method, k in rows(scale, (data,))}
        name = spec(scale, data, "ie", None, seed=0).options["data"]
        chosen = {method: results.best({row: own[row] for row in own if row[0] == method}) for method in METHODS}
        for (method, k), of_row in own.items():
            published = published_errors(find("overlap", method=method, K=k, dataset=data))
            harmonic = spread(values(of_row, "harmonic_mean"))
            mark = check_mark(method != "ie" and chosen[method] == (method, k))
            cells.append(
                (name, method, "" if k is None else str(k), *error_cells(scale, of_row), harmonic, mark, *published)
            )
        overlaps = scale.up_to_members(OVERLAPS)
        pairs: list[tuple[Any, Any]] = [(("amcl", k), ("ie", None)) for k in overlaps]
        pairs += [(("amcl", k), ("amcl", 1)) for k in overlaps if k > 1]
        pairs += [(chosen["amcl"], chosen[method]) for method in METHODS[1:-1]]
        for one, two in pairs:
            if one is not None and two is not None:
                compared += compare(row_name(*one), own[one], row_name(*two), own[two], f"{name}: ")
    columns = ("data", "method", "K", *error_columns(scale), "harmonic mean", "chosen", "paper oracle", "paper top-1")
    about = f"Percent of the test set; K chosen by the harmonic mean on {results.chosen_on}."
    return Table("Number K of members per example", columns, cells, about, comparisons=compared)


def figure(results: Results) -> "Figure | None":
    """Plot the errors of each method against K; IE, in which all members take all examples, is drawn for every K."""
    scale = results.scale
    overlaps = scale.up_to_members(OVERLAPS)
    return errors_against(
        {
            str(spec(scale, data, "ie", None, seed=0).options["data"]): {
                method_title(method): [
                    (k, results.of(spec, scale, data, method, None if method == "ie" else k)) for k in overlaps
                ]
                for method in METHODS
            }
            for data in scale.data_sets(DATA)
        },
        "K",
    )


def row_name(method: str, k: int | None) -> str:
    """Return the name by which a note refers to a row.

    >>> row_name("amcl", 2), row_name("ie", None)
    ('amcl K = 2', 'ie')
    """
    return method if k is None else f"{method} K = {k}"

"""Ensembles of ten members (table 8).

The study trains 10 ResNet-10 networks on CIFAR-10 and CIFAR-100 with K = 1 and 4. At `standard`, its figure shows the
errors of IE and of AMCL with K = 1 on CIFAR-10 for other numbers of members, too.
"""

from typing import TYPE_CHECKING

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.definitions import overlap
from torchmcl.studies.error_figures import errors_against
from torchmcl.studies.published import find
from torchmcl.studies.study import error_cells, error_columns, method_title, published_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = ("cifar10", "cifar100")
OVERLAPS = (1, 4)
MEMBERS = 10
SMALLER = (2, 5)  # numbers of members in the figure
COMPARED = {"ie": None, "amcl": 1}  # the methods in the figure, with K


def spec(scale: Scale, data: str, method: str, k: int | None, members: int = MEMBERS, *, seed: int) -> Spec:
    """Return the specification of one run."""
    return scale.spec(method, network="resnet10", data=data, members=members, k=k, seed=seed)


def rows(scale: Scale) -> list[tuple[str, str, int | None]]:
    """Return the data set, the method and K of each row."""
    return overlap.rows(scale, DATA, OVERLAPS, MEMBERS)


def runs(scale: Scale) -> list[Spec]:
    """Return 9 configurations per data set and seed, and those of the figure."""
    specs = [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]
    if scale.transfer:
        small = [(method, k, members) for method, k in COMPARED.items() for members in SMALLER]
        specs += [spec(scale, DATA[0], *row, seed=seed) for seed in scale.seeds for row in small]
    return specs


def table(results: Results) -> Table:
    """Show the errors of each method and K."""
    cells, compared, scale = [], [], results.scale
    for data, method, k in rows(scale):
        own = results.of(spec, scale, data, method, k)
        published = published_errors(find("size", method=method, K=k, dataset=data))
        name = spec(scale, data, method, k, seed=0).options["data"]
        cells.append((name, method, "" if k is None else str(k), *error_cells(scale, own), *published))
        if method == "amcl":
            continue
        for same in scale.up_to_members(OVERLAPS, MEMBERS) if k is None else (k,):  # compare IE with AMCL for every K
            amcl = results.of(spec, scale, data, "amcl", same)
            compared += compare("amcl", amcl, method, own, f"{name}, K = {same}: ")
    columns = ("data", "method", "K", *error_columns(scale), "paper oracle", "paper top-1")
    about = "Percent of the test set."
    if scale.transfer:
        about += f" The table has M = {MEMBERS}; the figure also shows M = {' and '.join(map(str, SMALLER))}."
    return Table("Ten members", columns, cells, about, comparisons=compared)


def figure(results: Results) -> "Figure | None":
    """Plot the errors of IE and AMCL against the number of members."""
    lines = {
        method_title(method): [
            (members, results.of(spec, results.scale, DATA[0], method, k, members)) for members in (*SMALLER, MEMBERS)
        ]
        for method, k in COMPARED.items()
    }
    return errors_against({"": lines}, "number of members") if results.scale.transfer else None

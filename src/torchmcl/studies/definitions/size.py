"""Ensembles of ten members (table 8).

The study trains 10 ResNet-10 networks on CIFAR-10 and CIFAR-100 with K = 1 and 4.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.definitions import overlap
from torchmcl.studies.published import find
from torchmcl.studies.study import error_cells, error_columns, published_errors

DATA = ("cifar10", "cifar100")
OVERLAPS = (1, 4)
MEMBERS = 10


def spec(scale: Scale, data: str, method: str, k: int | None, *, seed: int) -> Spec:
    """Return the specification of the run for one row."""
    return scale.spec(method, network="resnet10", data=data, members=MEMBERS, k=k, seed=seed)


def rows(scale: Scale) -> list[tuple[str, str, int | None]]:
    """Return the data set, the method and K of each row."""
    return overlap.rows(scale, DATA, OVERLAPS, MEMBERS)


def runs(scale: Scale) -> list[Spec]:
    """Return 9 configurations per data set and seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


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
    return Table("Ten members", columns, cells, "Percent of the test set.", comparisons=compared)

"""Five methods on three networks and three data sets, with the best K of each method (table 3).

All ensembles have 5 members. K is chosen from 1 to 4 by the harmonic mean of oracle and top-1 error on the validation
split (the paper also chooses by the harmonic mean, but does not name the split). At `standard`, K is 1; the study
`overlap` compares values of K there.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.definitions.overlap import DATA, METHODS, OVERLAPS
from torchmcl.studies.published import find
from torchmcl.studies.study import error_cells, error_columns, k_cell, published_errors

NETWORKS = ("vgg16", "resnet34", "googlenet")


def spec(scale: Scale, network: str, data: str, method: str, k: int | None, *, seed: int) -> Spec:
    """Return the specification of one run."""
    return scale.network_spec(network, method, kind="choice", data=data, k=k, seed=seed)


def overlaps(scale: Scale, method: str) -> tuple[int | None, ...]:
    """Return the values of K to choose from."""
    return (None,) if method == "ie" else scale.up_to_members((1,) if scale.transfer else OVERLAPS)


def cells(scale: Scale) -> list[tuple[str, str]]:
    """Return the pairs of network and data set."""
    return [(network, data) for network in scale.networks(NETWORKS) for data in scale.data_sets(DATA)]


def runs(scale: Scale) -> list[Spec]:
    """Return 17 configurations per network, data set and seed, and 5 at `standard`."""
    return [
        spec(scale, network, data, method, k, seed=seed)
        for seed in scale.seeds
        for network, data in cells(scale)
        for method in METHODS
        for k in overlaps(scale, method)
    ]


def table(results: Results) -> Table:
    """Show the errors with the chosen K."""
    rows, compared, scale = [], [], results.scale
    for network, data in cells(scale):
        chosen = {}
        for method in METHODS:
            own = {k: results.of(spec, scale, network, data, method, k) for k in overlaps(scale, method)}
            k = None if method == "ie" else results.best(own)
            chosen[method] = own.get(k, [])
            used = spec(scale, network, data, method, k, seed=0).options
            published = published_errors(find("networks", network=network, method=method, dataset=data))
            row = [k_cell(k, has_k=method != "ie"), *error_cells(scale, chosen[method]), *published]
            rows.append((used["network"], used["data"], method, *row))
        compared += compare_all("amcl", chosen, f"{used['network']}, {used['data']}: ")
    columns = ("network", "data", "method", "K", *error_columns(scale), "paper oracle", "paper top-1")
    chosen_k = "K = 1" if scale.transfer else f"K chosen by the harmonic mean on {results.chosen_on}"
    about = f"Percent of the test set; {chosen_k}."
    return Table("Methods, networks and data sets", columns, rows, about, comparisons=compared)

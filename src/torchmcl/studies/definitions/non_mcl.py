"""AMCL and ensembles that do not specialise: EMADNN, ONE and KDCL (table 4).

The study trains 3 PreAct ResNet-10 or MobileNetV2 networks, with K = 2 for AMCL. The paper's EMADNN "uses 16
multi-branch networks"; here, EMADNN has the same number of members as the other methods.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.published import find
from torchmcl.studies.study import error_cells, error_columns, published_errors

NETWORKS = ("preact_resnet10", "mobilenet_v2")
DATA = ("cifar10", "cifar100")
METHODS = ("ie", "emadnn", "one", "kdcl", "amcl")


def spec(scale: Scale, network: str, data: str, method: str, *, seed: int) -> Spec:
    """Return the specification of one run."""
    return scale.network_spec(network, method, data=data, members=3, k=2 if method == "amcl" else None, seed=seed)


def cells(scale: Scale) -> list[tuple[str, str]]:
    """Return the pairs of network and data set."""
    return [(network, data) for network in scale.networks(NETWORKS) for data in scale.data_sets(DATA)]


def runs(scale: Scale) -> list[Spec]:
    """Return 5 configurations per network, data set and seed."""
    return [
        spec(scale, *cell, method, seed=seed) for seed in scale.seeds for cell in cells(scale) for method in METHODS
    ]


def table(results: Results) -> Table:
    """Show the errors of each method."""
    rows, compared = [], []
    for network, data in cells(results.scale):
        by_method = {method: results.of(spec, results.scale, network, data, method) for method in METHODS}
        used = spec(results.scale, network, data, "amcl", seed=0).options
        for method, own in by_method.items():
            published = find("non_mcl", network=network, method=method, dataset=data)
            rows.append(
                (used["network"], used["data"], method, *error_cells(results.scale, own), *published_errors(published))
            )
        compared += compare_all("amcl", by_method, f"{used['network']}, {used['data']}: ")
    columns = ("network", "data", "method", *error_columns(results.scale), "paper oracle", "paper top-1")
    return Table(
        "Ensembles that do not specialise",
        columns,
        rows,
        "Percent of the test set; AMCL with K = 2.",
        comparisons=compared,
    )

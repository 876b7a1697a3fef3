"""AMCL against ensembles that do not specialise: EMADNN, ONE and KDCL (table 4).

3 PreAct ResNet-10 or MobileNetV2, AMCL with K = 2. The paper's EMADNN "uses 16 multi-branch networks"; here it has as
many members as the others.
"""

from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed
from torchmcl.studies.tables import Table

NETWORKS = ("preact_resnet10", "mobilenet_v2")
DATA = ("cifar10", "cifar100")
METHODS = ("ie", "emadnn", "one", "kdcl", "amcl")


def spec(scale: Scale, network: str, data: str, method: str, *, seed: int) -> Spec:
    """One run."""
    return scale.compared(network, method, data=data, members=3, k=2 if method == "amcl" else None, seed=seed)


def cells(scale: Scale) -> list[tuple[str, str]]:
    """Networks and data sets."""
    return [(network, data) for network in scale.networks(NETWORKS) for data in scale.data_sets(DATA)]


def runs(scale: Scale) -> list[Spec]:
    """5 configurations for each network and data set."""
    return [
        spec(scale, *cell, method, seed=seed) for seed in scale.seeds for cell in cells(scale) for method in METHODS
    ]


def table(results: Results) -> Table:
    """Errors by method."""
    rows, notes = [], []
    for network, data in cells(results.scale):
        own = {method: results.of(spec, results.scale, network, data, method) for method in METHODS}
        told = spec(results.scale, network, data, "amcl", seed=0).options
        for method, found in own.items():
            known = find("non_mcl", network=network, method=method, dataset=data)
            rows.append((told["network"], told["data"], method, *errors(found), *printed(known)))
        for method in METHODS[:-1]:
            notes += [f"{told['network']}: {note}" for note in compare("amcl", own["amcl"], method, own[method])]
    columns = ("network", "data", "method", "oracle", "top-1", "paper oracle", "paper top-1")
    return Table("Ensembles that do not specialise", columns, rows, "Percent of the test set; AMCL with K = 2.", notes)

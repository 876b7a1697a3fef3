"""Five methods on three networks and three data sets, each with its best K (table 3).

5 members; K of 1 to 4 is chosen by the harmonic mean of oracle and top-1 error on the validation split (the paper says
by the harmonic mean, not of what).
"""

from torchmcl.studies.definitions.overlap import DATA, METHODS, OVERLAPS
from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed
from torchmcl.studies.tables import MISSING, Table

NETWORKS = ("vgg16", "resnet34", "googlenet")


def spec(scale: Scale, network: str, data: str, method: str, k: int | None, *, seed: int) -> Spec:
    """One run."""
    return scale.compared(network, method, kind="choice", data=data, k=k, seed=seed)


def overlaps(scale: Scale, method: str) -> tuple[int | None, ...]:
    """The values of K among which is chosen."""
    return (None,) if method == "ie" else scale.overlaps(OVERLAPS)


def cells(scale: Scale) -> list[tuple[str, str]]:
    """Networks and data sets."""
    return [(network, data) for network in scale.networks(NETWORKS) for data in scale.data_sets(DATA)]


def runs(scale: Scale) -> list[Spec]:
    """17 configurations for each network and data set."""
    return [
        spec(scale, network, data, method, k, seed=seed)
        for seed in scale.seeds
        for network, data in cells(scale)
        for method in METHODS
        for k in overlaps(scale, method)
    ]


def table(results: Results) -> Table:
    """Errors at the chosen K."""
    rows, notes, scale = [], [], results.scale
    for network, data in cells(scale):
        chosen = {}
        for method in METHODS:
            own = {k: results.of(spec, scale, network, data, method, k) for k in overlaps(scale, method)}
            k = None if method == "ie" else results.best(own)
            chosen[method] = own.get(k, [])
            told = spec(scale, network, data, method, k, seed=0).options
            known = find("networks", network=network, method=method, dataset=data)
            named = "" if method == "ie" else MISSING if k is None else str(k)
            rows.append((told["network"], told["data"], method, named, *errors(chosen[method]), *printed(known)))
        for method in METHODS[:-1]:
            said = compare("amcl", chosen["amcl"], method, chosen[method])
            notes += [f"{told['network']}, {told['data']}: {note}" for note in said]
    columns = ("network", "data", "method", "K", "oracle", "top-1", "paper oracle", "paper top-1")
    about = f"Percent of the test set; K chosen by the harmonic mean on {results.chosen_on}."
    return Table("Methods, networks and data sets", columns, rows, about, notes)

"""Ten members (table 8).

10 ResNet-10 on CIFAR-10 and CIFAR-100, K = 1 and 4.
"""

from torchmcl.studies.published import find
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, compare, errors, printed
from torchmcl.studies.tables import Table

DATA = ("cifar10", "cifar100")
METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl")
OVERLAPS = (1, 4)
MEMBERS = 10


def spec(scale: Scale, data: str, method: str, k: int | None, *, seed: int) -> Spec:
    """One row's run."""
    return scale.spec(method, network="resnet10", data=data, members=MEMBERS, k=k, seed=seed)


def rows(scale: Scale) -> list[tuple[str, str, int | None]]:
    """Data, method, K."""
    overlaps = scale.overlaps(OVERLAPS, MEMBERS)
    return [
        (data, method, k)
        for data in scale.data_sets(DATA)
        for method in METHODS
        for k in (overlaps if method != "ie" else (None,))
    ]


def runs(scale: Scale) -> list[Spec]:
    """9 configurations a data set."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def table(results: Results) -> Table:
    """Errors by method and K."""
    made, notes = [], []
    overlaps = results.scale.overlaps(OVERLAPS, MEMBERS)
    for data, method, k in rows(results.scale):
        found = results.of(spec, results.scale, data, method, k)
        known = find("size", method=method, K=k, dataset=data)
        shown = spec(results.scale, data, method, k, seed=0).options["data"]
        made.append((shown, method, "" if k is None else str(k), *errors(found), *printed(known)))
        if method == "amcl":
            continue
        for same in overlaps if k is None else (k,):  # IE, which has no K, is compared with every K
            ours = results.of(spec, results.scale, data, "amcl", same)
            notes += [f"{shown}, K = {same}: {note}" for note in compare("amcl", ours, method, found)]
    columns = ("data", "method", "K", "oracle", "top-1", "paper oracle", "paper top-1")
    return Table("Ten members", columns, made, "Percent of the test set.", notes)

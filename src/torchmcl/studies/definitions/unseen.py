"""Detection of unseen data by every score that a method has (section 4.5).

The study trains 5 members on CIFAR-10 with K = 1, and one network, and compares their scores on the test set with those
on SVHN. The paper states that the auxiliary probability is high on unseen data, and gives no number.
"""

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.scales import UNSEEN
from torchmcl.studies.study import error_cells, error_columns, spread

METHODS = ("one network", "ie", "smcl", "cmcl", "vmcl", "amcl")
MEASURES = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR at 95 % TPR"}


def spec(scale: Scale, method: str, *, seed: int) -> Spec:
    """Return the specification of the run with this method."""
    record = [record_name(scale)]
    alone = {"members": 1, "record": [*record, "top_m:5"]} if method == "one network" else {"record": record}
    k = None if method in ("one network", "ie") else 1
    name = "ie" if method == "one network" else method
    return scale.spec(name, kind="auxiliary", network="resnet18", data="cifar10", k=k, seed=seed, **alone)


def record_name(scale: Scale) -> str:
    """Return the name of the additional record."""
    return f"unseen:{UNSEEN[scale.name]}"


def runs(scale: Scale) -> list[Spec]:
    """Return 6 configurations per seed."""
    return [spec(scale, method, seed=seed) for seed in scale.seeds for method in METHODS]


def table(results: Results) -> Table:
    """Show how well each score of each method separates unseen images from test images."""
    rows = []
    for method in METHODS:
        own = results.of(spec, results.scale, method)
        records = [result["records"][record_name(results.scale)] for result in own]
        for number, score in enumerate(records[0] if records else ("",)):
            separated = [spread([one[score][measure] for one in records], 1) for measure in MEASURES]
            errors = error_cells(results.scale, own) if number == 0 else [""] * len(error_columns(results.scale))
            rows.append((method, score.replace("_", " "), *separated, *errors))
    columns = ("method", "score", *MEASURES.values(), *error_columns(results.scale))
    data = UNSEEN[results.scale.name]
    about = (
        f"Percent. AUROC, AUPR and false positive rate at a true positive rate of 95 % for {data} as positive class "
        "against the test set; higher scores mean less like the training data. K = 1."
    )
    return Table("Detection of unseen data", columns, rows, about)

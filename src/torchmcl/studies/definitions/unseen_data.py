"""Detection of several kinds of unseen data by every score (not in the paper).

The study compares AMCL with the independent ensemble: heads on frozen features for CIFAR-10, against SVHN and
CIFAR-100, and small networks for digits, against SVHN and Tiny-ImageNet reduced to 8x8 gray pixels. For CIFAR-10, both
have the learning rate and weight decay that the study `unseen` chose for both on the validation split.
"""

from collections.abc import Iterator
from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.store import Result
from torchmcl.studies.study import spread, values
from torchmcl.studies.tables import MISSING

METHODS = ("ie", "amcl")
PAIRS: dict[str, dict[str, tuple[str, ...]]] = {  # the unseen data for each data set
    "smoke": {"digits": ("digits/7,8,9",)},
    "standard": {"cifar10": ("svhn-10000", "cifar100"), "digits": ("svhn-10000", "tiny-imagenet-4000")},
}
MEASURES = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR at 95 % TPR", "accepted95": "accepted"}
CHOSEN = {"learning_rate": 0.003, "weight_decay": 0.5}
KINDS = {("standard", "cifar10"): "images", ("standard", "digits"): "digits"}


def spec(scale: Scale, data: str, method: str, *, seed: int) -> Spec:
    """Return the specification of the run with this method, and with the records of the study `selective`."""
    others = PAIRS[scale.name][data]
    record = [f"{kind}:{other}" for kind in ("unseen", "selective") for other in others]
    options: dict[str, Any] = {"data": data, "k": None if method == "ie" else 1}
    options |= CHOSEN if (scale.name, data) == ("standard", "cifar10") else {}
    kind = KINDS.get((scale.name, data), "unseen_data")
    return scale.spec(method, kind=kind, seed=seed, record=record, **options)


def runs(scale: Scale) -> list[Spec]:
    """Return 2 configurations per data set and seed."""
    sets = PAIRS.get(scale.name, {})
    return [spec(scale, data, method, seed=seed) for seed in scale.seeds for data in sets for method in METHODS]


def rows(results: Results, record: str) -> Iterator[tuple[str, str, str, list[Result], list[dict[str, Any]]]]:
    """Yield the data, the unseen data, the method, its results and their records `record`, for each row of a table."""
    for data, others in PAIRS.get(results.scale.name, {}).items():
        for other in others:
            for method in METHODS:
                own = results.of(spec, results.scale, data, method)
                yield data, other, method, own, [result["records"][f"{record}:{other}"] for result in own]


def table(results: Results) -> Table:
    """Show how well each score of each method separates unseen data from the test set; * marks the highest AUROC."""
    cells = []
    for data, other, method, own, records in rows(results, "unseen"):
        mean = {name: sum(one[name]["auroc"] for one in records) for name in (records[0] if records else ())}
        for number, score in enumerate(mean or ("",)):
            best = " *" * (bool(mean) and score == max(mean, key=lambda name: mean[name]))
            separated = [spread([one[score][key] for one in records], 1) if score else MISSING for key in MEASURES]
            error = spread(values(own, "top1_error")) if number == 0 else ""
            cells.append((data, other, method, score.replace("_", " ") + best, *separated, error))
    about = (
        "Percent. AUROC, AUPR and false positive rate at a true positive rate of 95 % with the unseen data as positive "
        "class; accepted: the share of the unseen examples that are accepted if 95 % of the test set is; *: the score "
        "with the highest mean AUROC of the method. Nearest neighbours, Mahalanobis and virtual logit use features: "
        "those of the frozen network for CIFAR-10, the inputs of the members' last layers for digits, for which "
        "unseen images are reduced to 8x8 gray values. K = 1."
    )
    columns = ("data", "unseen", "method", "score", *MEASURES.values(), "top-1")
    return Table("Detection of several kinds of unseen data", columns, cells, about)

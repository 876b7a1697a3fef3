"""Specialists on the features of a pretrained network (not in the paper).

The study trains 5 heads on frozen features of EfficientNet-Lite0 with K = 1, on CIFAR-10 and CIFAR-100. Every method
has the recipe of the network. No option is tuned.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare_all
from torchmcl.studies.study import errors, purity_cell, spread, values

METHODS = ("ie", "smcl", "cmcl", "vmcl", "amcl")
DATA = ("cifar10", "cifar100")
RECORDS = ("top_m", "training")


def spec(scale: Scale, data: str, method: str, *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    options: dict[str, Any] = {"data": data, "method": method, "k": None if method == "ie" else 1, "seed": seed}
    options |= {"network": "efficientnet_lite0", "image_size": 128, "members": 5}
    options |= {"learning_rate": 0.001, "weight_decay": 0.05}  # the recipe of the network, which is not tuned
    if scale.name == "smoke":
        options |= {"data": "digits", "data_limit": 200, "weights": "none", "image_size": 32, "epochs": 3, "hidden": 16}
    return Spec(options, RECORDS)


def rows(scale: Scale) -> list[tuple[str, str]]:
    """Return the data set and the method of each row; the scale `smoke` has one data set."""
    return [(data, method) for data in (DATA if scale.name != "smoke" else DATA[:1]) for method in METHODS]


def runs(scale: Scale) -> list[Spec]:
    """Return 5 configurations per data set and seed."""
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows(scale)]


def table(results: Results) -> Table:
    """Show the errors on the test set and on the training set."""
    cells, compared = [], []
    for data in dict(rows(results.scale)):
        by_method = {method: results.of(spec, results.scale, data, method) for method in METHODS}
        for method, own in by_method.items():
            records = [result["records"] for result in own]
            top_m = spread([one["top_m"] for one in records])
            fitted = [spread([one["training"][key] for one in records]) for key in ("top1_error", "own_error")]
            calibration = [spread(values(own, "nll"), 3), spread(values(own, "ece"), 1)]
            cells.append((data, method, *errors(own), top_m, *calibration, *fitted, purity_cell(own)))
        compared += compare_all("amcl", by_method, f"{data}, ")
    columns = ("data", "method", "oracle", "top-1", "top-M", "NLL", "ECE", "training", "own training", "purity")
    about = (
        "Percent, except NLL. top-M: test images whose class is not among the M = 5 most probable classes of the "
        "ensemble; this is the error of one list of M answers, where the oracle error is that of M members. training: "
        "the ensemble's error on the training set; own training: the members' error on training images of their own "
        "classes. K = 1."
    )
    return Table("Specialists on features of a pretrained network", columns, cells, about, comparisons=compared)

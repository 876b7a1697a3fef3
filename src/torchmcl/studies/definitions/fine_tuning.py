"""Fine-tuning the last stage of a pretrained network, against heads on its frozen features (not in the paper).

The study trains 5 members with K = 1 on 10,000 images of CIFAR-10. With the trunk `stage6`, each member has its own
copy of the last stage of EfficientNet-Lite0, and trains it with a tenth of the learning rate of its head.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.study import errors, purity_cell, spread, values

METHODS = ("ie", "amcl")
TRUNKS = ("features", "stage6")


def spec(scale: Scale, trunk: str, method: str, *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    options: dict[str, Any] = {"method": method, "k": None if method == "ie" else 1, "seed": seed, "members": 5}
    options |= {"data": "cifar10", "data_limit": 10_000, "network": "efficientnet_lite0", "trunk": trunk}
    options |= {"image_size": 128, "learning_rate": 0.001, "weight_decay": 0.05}  # the recipe, which is not tuned
    if scale.name == "smoke":
        options |= {"data": "digits", "data_limit": 100, "weights": "none", "image_size": 32, "epochs": 2, "hidden": 16}
        options |= {"members": 2}
    return Spec(options, ("training",))


def runs(scale: Scale) -> list[Spec]:
    """Return 4 configurations per seed."""
    return [spec(scale, trunk, method, seed=seed) for seed in scale.seeds for trunk in TRUNKS for method in METHODS]


def table(results: Results) -> Table:
    """Show the errors with and without fine-tuning."""
    rows, compared = [], []
    for trunk in TRUNKS:
        for method in METHODS:
            own = results.of(spec, results.scale, trunk, method)
            fitted = [spread([one["records"]["training"][key] for one in own]) for key in ("top1_error", "own_error")]
            rows.append((trunk, method, *errors(own), spread(values(own, "nll"), 3), *fitted, purity_cell(own)))
    for method in METHODS:
        tuned, frozen = (results.of(spec, results.scale, trunk, method) for trunk in reversed(TRUNKS))
        compared += compare(f"{method} fine-tuned", tuned, f"{method} on frozen features", frozen)
    columns = ("trunk", "method", "oracle", "top-1", "NLL", "training", "own training", "purity")
    about = (
        "Percent, except NLL. training: the ensemble's error on the training set; own training: the members' error on "
        "training images of their own classes. K = 1."
    )
    return Table("Fine-tuning the last stage of a pretrained network", columns, rows, about, comparisons=compared)

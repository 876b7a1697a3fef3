"""Fine-tuning the last stage of a pretrained network, against heads on its frozen features (not in the paper).

The study trains 5 members with K = 1 on 10,000 images of CIFAR-10, and one network on all of its images. With the trunk
`stage6`, each member has its own copy of the last stage of EfficientNet-Lite0, and trains it with a tenth of the
learning rate of its head.
"""

from typing import Any

from torchmcl.studies import Results, Scale, Spec, Table
from torchmcl.studies.comparison import compare
from torchmcl.studies.study import errors, purity_cell, spread, values
from torchmcl.studies.tables import MISSING

# Method, members and number of images (None: all). Five copies of the last stage take five times as long as one, and
# five times as many images do as well: the study has one or the other.
ENSEMBLES: dict[str, tuple[str, int, int | None]] = {
    "ie": ("ie", 5, 10_000),
    "amcl": ("amcl", 5, 10_000),
    "one network": ("ie", 1, None),
}
TRUNKS = ("features", "stage6")


def spec(scale: Scale, trunk: str, method: str, members: int, limit: int | None, *, seed: int) -> Spec:
    """Return the specification of the run of one row."""
    options: dict[str, Any] = {"method": method, "k": None if method == "ie" else 1, "seed": seed, "members": members}
    options |= {"data": "cifar10", "data_limit": limit, "network": "efficientnet_lite0", "trunk": trunk}
    options |= {"image_size": 128, "learning_rate": 0.001, "weight_decay": 0.05}  # the recipe, which is not tuned
    if scale.name == "smoke":
        options |= {"data": "digits", "weights": "none", "image_size": 32, "epochs": 2, "hidden": 16}
        options |= {"data_limit": 100 if limit else 200, "members": min(2, members)}
    return Spec(options, ("training",))


def runs(scale: Scale) -> list[Spec]:
    """Return 6 configurations per seed."""
    rows = [(trunk, *ensemble) for trunk in TRUNKS for ensemble in ENSEMBLES.values()]
    return [spec(scale, *row, seed=seed) for seed in scale.seeds for row in rows]


def table(results: Results) -> Table:
    """Show the errors with and without fine-tuning."""
    rows, compared = [], []
    for name, ensemble in ENSEMBLES.items():
        by_trunk = {trunk: results.of(spec, results.scale, trunk, *ensemble) for trunk in TRUNKS}
        for trunk, own in by_trunk.items():
            images = f"{own[0]['examples']['train']:,}" if own else MISSING
            fitted = [spread([one["records"]["training"][key] for one in own]) for key in ("top1_error", "own_error")]
            cells = (*errors(own), spread(values(own, "nll"), 3), *fitted, purity_cell(own), str(len(own)))
            rows.append((trunk, name, images, *cells))
        frozen, tuned = by_trunk.values()
        compared += compare(f"{name} fine-tuned", tuned, f"{name} on frozen features", frozen)
    columns = ("trunk", "ensemble", "images", "oracle", "top-1", "NLL", "training", "own training", "purity", "runs")
    about = (
        "Percent, except NLL. images: number of training images; training: the ensemble's error on the training set; "
        "own training: the members' error on training images of their own classes. K = 1."
    )
    return Table("Fine-tuning the last stage of a pretrained network", columns, rows, about, comparisons=compared)

"""The published recipe of each method: the options in which its official code differs from the defaults of torchmcl.

`fit(..., recipe="published")` applies them. An option that is given, also by a `Method` object, replaces the recipe's.
The number of members and the network are never part of a recipe, and the exchange is part only of those of BAM and
CBAM. Options that begin with `data_` apply only to CIFAR-10 and CIFAR-100, the data of the official code, loaded by
name, and not to pretrained networks. Schedules are shares of the epochs, so that a shorter run keeps their form. [I]
marks what is inferred or differs:

- amcl: the defaults of torchmcl are those of Kim et al. 2022.
- cmcl: Lee et al. 2017, VGGNet on CIFAR-10: the optimisation is the default, with the epochs of the data set [I]. Its
  ResNet-20 has `optimizer="heavy_ball", weight_decay=1e-4, drop_at="50%,75%", drop_to=0.1, epochs=164`. At test time,
  shared features are multiplied by 0.7, the expectation of the official code's random masks, so that predictions are
  deterministic [I]. pylearn2 scales images to a norm of 55, torchmcl to sqrt(3072) = 55.4.
- mcl_kd: Mun et al. 2018, for visual questions. Only the objective is theirs, the optimisation is the default [I].
  Members start from a trained independent ensemble, `initial_weights`, or are given as trained modules.
- one: Lan et al. 2018, ResNet-32 on CIFAR-100. The rate drops after 150 of 300 epochs, the default of its code; the
  script for this network has 151. The crop repeats pixels at the edge instead of padding with zeros [I]. Its code adds
  1e-7 to the teacher's probabilities, which is left out.
- annealed: Perera et al. 2024, for regression. The optimisation is the default [I]. The assignment is hard from epoch
  136 on; shorter runs end at a higher temperature.

BAM (Park et al. 2018) and CBAM (Woo et al. 2018) are not methods but attention modules. Their recipes, `recipe="bam"`
and `recipe="cbam"`, select feature fusion with the module of the official code, for any method. They can follow the
recipe of a method: `recipe="published+bam"`.

`recipe="sparse"` is the fast way to train AMCL from scratch: members exchange nothing and, once the memory is fixed,
see a quarter of the others' examples, with a fourfold weight. Five members then cost two networks in this phase;
docs/performance.md states the price in errors.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchmcl.errors import UsageError, known_name

if TYPE_CHECKING:
    from torchmcl.methods import Method

CIFAR = ("cifar10", "cifar100")
# 255 times the means (0.4914, 0.4822, 0.4465) and standard deviations (0.2023, 0.1994, 0.2010).
NORMALIZE = "normalize:125.307,122.961,113.8575/51.5865,50.847,51.255"
OPTIONS: dict[str, dict[str, Any]] = {
    "amcl": {},
    "cmcl": {
        "beta": 0.75,
        "stochastic": True,
        "weight_decay_on": "weights",
        "norm_eps": 1e-3,
        "data_preprocess": "gcn+zca",
        "data_validation": 0.0,
    },
    "mcl_kd": {"beta": 50.0, "class_mean": True, "temperature": 0.1, "pretrain": 0},
    "one": {
        "temperature": 3.0,
        "rampup": "26.6667%",  # 80 of 300 epochs
        "first_epoch": 0,
        "epochs": 300,
        "optimizer": "heavy_ball",
        "weight_decay": 1e-4,
        "drop_at": "50%,75%",
        "drop_to": 0.1,
        "augment": "crop,flip",
        "data_preprocess": NORMALIZE,
        "data_validation": 0.0,
    },
    "annealed": {"start": 0.5, "decay": 0.95},
}
NAMED: dict[str, dict[str, Any]] = {
    **{name: {"exchange": "feature_fusion", "preset": name} for name in ("bam", "cbam")},
    "sparse": {"exchange": "none", "sample_others": 0.25, "sample_correction": "weight"},
}


def with_published(
    recipe: str, method: "str | Method", network: Any, data: Any, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the given options of `fit`, and those of the published recipe that are not given (None).

    `recipe` is published, bam, cbam or sparse, or several of them joined by +.

    Raises:
        UsageError: If the method has no published recipe, or the recipe needs an option that is not given.

    >>> with_published("published", "annealed", "mlp", "digits", {"start": 0.3, "decay": None})
    {'start': 0.3, 'decay': 0.95}
    """
    names, published = recipe.split("+"), dict[str, Any]()
    for part in names:
        known_name("recipe", part, ("published", *NAMED))
        published |= of_method(method, network, data) if part == "published" else _named(part, network)
    options = {**given, **published, **{option: value for option, value in given.items() if value is not None}}
    trained = options.get("initial_weights") is not None or not isinstance(network, str)
    if published.get("pretrain") == options.get("pretrain") == 0 and not trained:
        raise UsageError(
            "The published recipe of mcl_kd starts from trained members. Pass initial_weights=RUN, the folder of a "
            "run of the method ie with the same network and number of members, or pretrain=EPOCHS."
        )
    return options


def _named(name: str, network: Any) -> dict[str, Any]:
    """Return the options of a recipe in `NAMED`; members of a pretrained network share its trunk in any case."""
    from torchmcl import networks

    options = NAMED[name]
    if name == "sparse" and isinstance(network, str) and networks.is_pretrained(network):
        return {option: value for option, value in options.items() if option != "exchange"}
    return options


def of_method(method: "str | Method", network: Any, data: Any) -> dict[str, Any]:
    """Return the options of a method's published recipe for this network and these data.

    Raises:
        UsageError: If the method has no published recipe.
    """
    from torchmcl import methods, networks

    name = methods.function(method).__name__ if isinstance(method, str) else method.name
    if name not in OPTIONS:
        raise UsageError(f"The method {name} has no published recipe. Methods with one: {', '.join(OPTIONS)}.")
    published = OPTIONS[name]
    pretrained = isinstance(network, str) and networks.is_pretrained(network)
    if pretrained or not (isinstance(data, str) and data in CIFAR):
        published = {option: value for option, value in published.items() if not option.startswith("data_")}
    if not isinstance(method, str):
        published = {option: value for option, value in published.items() if option not in method.options}
    return dict(published)

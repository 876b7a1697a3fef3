"""The scales, which determine the size of each study.

`paper` uses the settings of Kim et al. 2022 (the defaults of `fit` come from appendix B.2). `standard` trains heads on
frozen features of a pretrained network, and tunes every configuration on the same grid (see `tuning`). `scratch` trains
a narrow network of the paper with the paper's recipe until it fits its training set; members can exchange features
there. `mini` trains narrow networks with short schedules on real data, to notice changes; no statement rests on it.
`smoke` trains on digits in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchmcl.errors import UsageError, known_name
from torchmcl.studies.spec import Spec

NAMES = ("smoke", "mini", "standard", "scratch", "paper")
SEEDS = {"smoke": 1, "mini": 1, "standard": 6, "scratch": 6, "paper": 3}
_UNSEEN = ("unseen_data", "selective")
SEEDS_OF_STUDY = {
    "mini": dict.fromkeys((*_UNSEEN, "from_scratch", "toy_regression", "tables_regression"), 0),
    "standard": {
        **dict.fromkeys(("pretrained_masks", "fine_tuning", "sensitivity", "balanced_masks"), 3),
        "from_scratch": 0,
        "tables_regression": 20,  # splits
    },
    "scratch": {
        **dict.fromkeys(("networks", "non_mcl", "overlap", "size", "penalties", "leaderboard", "sensitivity"), 0),
        **dict.fromkeys(("pretrained", "pretrained_masks", "fine_tuning", "unseen", "auxiliary"), 0),
        **dict.fromkeys((*_UNSEEN, "balanced", "balanced_masks", "toy_regression", "tables_regression"), 0),
        **dict.fromkeys(("ablation", "data_size", "segmentation"), 3),
        **dict.fromkeys(("assignment_flow", "grad_cam", "from_scratch", "sparse"), 1),
    },
    "paper": dict.fromkeys((*_UNSEEN, "from_scratch", "toy_regression", "tables_regression", "sparse"), 0),
}

Options = dict[str, Any]

# The options that the scale sets for each kind of study. At `paper`, most studies choose the data and the network.
_DIGITS: Options = {"data": "digits", "data_validation": 0.0, "network": "simple_cnn", "width": 4, "preset": "light"}
_DIGITS |= {"epochs": 2, "batch_size": 64}
_CIFAR10: Options = {"data": "cifar10", "data_validation": 0.0, "network": "simple_cnn", "width": 16, "preset": "light"}
_CIFAR10 |= {"epochs": 12, "precision": "32"}
_ICOSEG: Options = {"data": "icoseg", "data_validation": 0.0, "network": "fcn"}
_TWO_CLASSES: Options = {"data_classes": "dog,airplane", "data_validation": 0.0, "width": 32}
_TRANSFER: Options = {"network": "efficientnet_lite0", "image_size": 128, "hidden": 64, "data_validation": 0.1}
_TRANSFER |= dict.fromkeys(("width", "exchange", "preset"))  # members share the pretrained network, and nothing else
_SCRATCH: Options = {"data": "cifar10", "data_limit": 20_000, "data_validation": 0.1, "epochs": 12, "drop_every": 4}
_SCRATCH |= {"network": "resnet10", "width": 16, "preset": "default"}
_SIMPLE_CNN: Options = {"network": "simple_cnn", "data_limit": None, "epochs": 24, "drop_every": 8}
# The defaults of `fit` on digits; the rate is given, so that it is not tuned.
_DEFAULT_DIGITS: Options = {"data": "digits", "network": "simple_cnn", "data_validation": 0.1, "epochs": 30}
_DEFAULT_DIGITS |= {"learning_rate": 0.1, "weight_decay": 5e-4, **dict.fromkeys(("width", "preset"))}
_MASKS = {**_CIFAR10, **_ICOSEG, "epochs": 30, "batch_size": 32, "drop_every": 8}
_PRETRAINED_MASKS = {**_ICOSEG, "epochs": 30, "batch_size": 32, "network": "efficientnet_lite0"}
_PRETRAINED_MASKS |= {"learning_rate": 0.001, "weight_decay": 0.05}  # the recipe of the network, which is not tuned
# Numbers to predict: the seed draws the data or the split. A tenth of the training set calibrates the density.
_NUMBERS: Options = {"network": "mlp", "depth": 2, "width": 32, "exchange": "weight_sharing", "data_validation": 0.1}
_NUMBERS |= {"optimizer": "adam", "learning_rate": 0.01, "weight_decay": 5e-4, "schedule": "cosine"}
_NUMBERS |= {"epochs": 20, "batch_size": 64}
SETTINGS: dict[str, dict[str, Options]] = {
    "smoke": {
        "images": {**_DIGITS, "data_limit": 200, "data_validation": 0.2},
        "confidence": {**_DIGITS, "data_classes": "3,8", "epochs": 3, "batch_size": 32},
        "auxiliary": {**_DIGITS, "data_classes": "0,1,2,3,4,5,6"},
        "unseen_data": {**_DIGITS, "data_classes": "0,1,2,3,4,5,6", "data_validation": 0.2},
        "segmentation": {**_DIGITS, "data": "digits-masks", "data_limit": 100, "network": "fcn", "batch_size": 32},
        "numbers": {**_NUMBERS, "epochs": 2, "width": 4},
        "tables": {**_NUMBERS, "epochs": 2, "width": 4},
    },
    "mini": {
        "images": {**_CIFAR10, "data_limit": 10_000, "data_validation": 0.1, "batch_size": 128, "drop_every": 4},
        "confidence": {**_CIFAR10, **_TWO_CLASSES},
        "segmentation": _MASKS,
    },
    "standard": {
        "images": _TRANSFER,
        "digits": _DEFAULT_DIGITS,
        "confidence": {**_TRANSFER, "data": "cifar10", "data_classes": "dog,airplane"},
        "segmentation": _PRETRAINED_MASKS,
        "numbers": _NUMBERS,
        "tables": {**_NUMBERS, "batch_size": 32},
    },
    "scratch": {
        "images": _SCRATCH,
        "confidence": {
            **_SCRATCH,
            **_TWO_CLASSES,
            "data_limit": None,
            "network": "simple_cnn",
            "epochs": 24,
            "drop_every": 8,
        },
        "segmentation": {**_MASKS, "learning_rate": 0.1, "weight_decay": 5e-4},
    },
    "paper": {
        "images": {"data_validation": 0.0},
        "choice": {"data_validation": 0.1},  # these studies choose K on the validation split
        "confidence": {"data": "cifar10", "network": "simple_cnn", **_TWO_CLASSES},
        "segmentation": _ICOSEG,
    },
}

# Method options that differ from their defaults. At `mini`, these are the values with which the stored results were
# trained; at `paper`, they are the published values.
METHODS: dict[str, dict[str, Options]] = {
    "smoke": {"amcl": {"warmup": 1}, "mcl": {"round": 1}, "mcl_kd": {"pretrain": 1}, "one": {"rampup": 2}},
    "mini": {"amcl": {"warmup": 5}, "annealed": {"decay": 0.95}, "mcl_kd": {"pretrain": 4}, "one": {"rampup": 10}},
    "standard": {},  # durations are shares of the training
    "scratch": {},
    "paper": {"annealed": {"decay": 0.95}, "one": {"rampup": 80}},
}
# The settings among which every configuration chooses on the validation split, with the first seeds only.
GRID: dict[str, tuple[Options, ...]] = {
    "standard": tuple({"learning_rate": rate, "weight_decay": decay} for rate in (1e-3, 3e-3) for decay in (0.05, 0.5))
}
TUNING_SEEDS = (0, 1)
SAMPLES = {"standard": {"cifar100": "cifar100-20000"}}  # samples in place of whole training sets
RECORDS = dict.fromkeys(("standard", "scratch"), ("cost", "top_m", "training"))  # records of every run
RECORDS_OF_MASKS = {"standard": ("cost", "training")}

# Replacements for the paper's networks in studies that compare networks.
NETWORKS: dict[str, dict[str, Options]] = {
    "smoke": {
        "vgg16": {"network": "simple_cnn", "width": 4},
        "resnet34": {"network": "mlp", "width": 16},
        "preact_resnet10": {"network": "simple_cnn", "width": 4},
        "mobilenet_v2": {"network": "mlp", "width": 16},
    },
    "mini": {
        "vgg16": {"network": "vgg16", "width": 8},
        "resnet34": {"network": "resnet10", "width": 8},
        "googlenet": {"network": "simple_cnn", "width": 16},
        "preact_resnet10": {"network": "preact_resnet10", "width": 8},
        "mobilenet_v2": {"network": "mobilenet_v2", "width": 8},
    },
    "standard": {
        "vgg16": {"network": "efficientnet_lite0"},
        "resnet34": {"network": "efficientnet_lite1"},
        "googlenet": {"network": "efficientnet_lite2"},
        "preact_resnet10": {"network": "efficientnet_lite0"},
    },
}
# The paper's data sets that a scale includes.
DATA = {"smoke": ("cifar10",), "mini": ("cifar10",), "standard": ("cifar10", "cifar100"), "scratch": ("cifar10",)}
DATA["smoke"] += ("diabetes", "linnerud")
DATA["standard"] += ("diabetes", "linnerud", "boston-housing", "auto-mpg")
MAX_MEMBERS = {"smoke": 3}
UNSEEN = {"smoke": "digits/7,8,9", "mini": "svhn", "standard": "svhn-10000", "scratch": "svhn-10000", "paper": "svhn"}
FLOW_WARMUP = {"smoke": 1, "mini": 5, "standard": 5, "scratch": 5, "paper": 10}


@dataclass(frozen=True)
class Scale:
    """The size of a study and its seeds.

    >>> scale("mini", "ablation").spec("amcl", network="resnet18", k=1, seed=0).options["network"]
    'simple_cnn'
    >>> scale("paper", "ablation").spec("amcl", network="resnet18", k=1, seed=0).options["network"]
    'resnet18'
    """

    name: str
    seeds: tuple[int, ...] = (0,)
    grid: tuple[Options, ...] = ()  # the settings among which each configuration chooses
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS

    def spec(
        self,
        method: str,
        *,
        seed: int,
        kind: str = "images",
        members: int = 5,
        record: Sequence[str] = (),
        **options: Any,
    ) -> Spec:
        """Return the specification of a run with the paper's settings, adapted to this scale.

        Args:
            method: name of the method
            seed: random seed
            kind: kind of study, such as images or segmentation (see `SETTINGS`)
            members: number of members; limited by the scale
            record: additional records to store
            options: further arguments of `fit`; values of None and options that the scale sets are ignored
        """
        of_scale = dict(SETTINGS[self.name].get(kind, SETTINGS[self.name]["images"]))
        own = {"method": method, "members": self._limit_members(members), "seed": seed}
        given = {name: value for name, value in options.items() if value is not None}
        of_scale |= {"data_sample": SAMPLES.get(self.name, {}).get(str({**given, **of_scale}.get("data")))}
        records = (*record, *self.records(kind))
        return Spec({**METHODS[self.name].get(method, {}), **given, **of_scale, **own}, records)

    def records(self, kind: str = "images") -> tuple[str, ...]:
        """Return the records of every run of a kind of study."""
        if kind in ("numbers", "tables"):
            return ()
        return (RECORDS_OF_MASKS if kind == "segmentation" else RECORDS).get(self.name, ())

    @property
    def protocol(self) -> bool:
        """Whether tables show training errors, the rivals of the oracle error and the cost."""
        return self.name in RECORDS

    @property
    def transfer(self) -> bool:
        """Whether members are heads on one frozen network, so that they exchange nothing else."""
        return self.name == "standard"

    def network_spec(self, network: str, method: str, *, seed: int, **options: Any) -> Spec:
        """Return a run specification for a comparison of networks; the scale can replace `network` with another one."""
        spec = self.spec(method, seed=seed, network=network, **options)
        return Spec({**spec.options, **NETWORKS.get(self.name, {}).get(network, {})}, spec.record)

    def networks(self, published: Sequence[str]) -> tuple[str, ...]:
        """Return the paper's networks that this scale includes."""
        known = NETWORKS.get(self.name)
        return tuple(name for name in published if known is None or name in known)

    def data_sets(self, published: Sequence[str]) -> tuple[str, ...]:
        """Return the paper's data sets that this scale includes.

        >>> scale("mini").data_sets(("cifar10", "cifar100"))
        ('cifar10',)
        """
        return tuple(name for name in published if name in DATA.get(self.name, published))

    def subset(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return all values, or only the first and the last at `smoke`."""
        return tuple(values) if self.name != "smoke" else (values[0], values[-1])

    def up_to_members(self, values: Sequence[int], members: int = 5) -> tuple[int, ...]:
        """Return the values that do not exceed the number of members at this scale."""
        return tuple(value for value in values if value <= self._limit_members(members))

    def _limit_members(self, members: int) -> int:
        return min(members, MAX_MEMBERS.get(self.name, members))


def scale(name: str, study: str | None = None, *, seeds: int | None = None) -> Scale:
    """Return a scale by its name.

    Args:
        name: smoke, mini, standard, scratch or paper
        study: name of a study, which may have fewer seeds than others
        seeds: number of seeds; overrides the default of the scale and the study

    >>> scale("standard", "ablation").seeds, scale("standard", "sensitivity").seeds
    ((0, 1, 2, 3, 4, 5), (0, 1, 2))
    """
    known_name("scale", name, NAMES)
    count = seeds if seeds is not None else SEEDS_OF_STUDY.get(name, {}).get(study or "", SEEDS[name])
    if seeds is not None and seeds < 1:
        raise UsageError(f"Expected seeds >= 1, got {seeds}.")
    return Scale(name, tuple(range(count)), GRID.get(name, ()))

"""What `smoke`, `mini` and `paper` mean: the one place where the size of every study is set.

`paper` is the setting of Kim et al. 2022 (the defaults of `fit` are its appendix B.2); `mini` is real data with narrow
networks and short schedules; `smoke` is digits, in seconds. No method is tuned more than another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchmcl.errors import UsageError, known_name
from torchmcl.studies.spec import Spec

NAMES = ("smoke", "mini", "paper")
SEEDS = {"smoke": 1, "mini": 3, "paper": 3}
# Studies of many runs, or beside the point of the paper, have one seed at mini unless more are asked for.
FEWER = {"mini": dict.fromkeys(("penalties", "size", "non_mcl", "leaderboard", "networks"), 1)}

Options = dict[str, Any]

# What the scale decides whatever the study asks for, by kind of study. `paper` leaves data and network to the study.
SETTINGS: dict[str, dict[str, Options]] = {
    "smoke": {
        "images": {
            "data": "digits",
            "data_limit": 200,
            "data_validation": 0.2,
            "network": "simple_cnn",
            "width": 4,
            "epochs": 2,
            "batch_size": 64,
            "preset": "light",
        },
        "confidence": {
            "data": "digits",
            "data_classes": "3,8",
            "data_validation": 0.0,
            "network": "simple_cnn",
            "width": 4,
            "epochs": 3,
            "batch_size": 32,
            "preset": "light",
        },
        "auxiliary": {
            "data": "digits",
            "data_classes": "0,1,2,3,4,5,6",
            "data_validation": 0.0,
            "network": "simple_cnn",
            "width": 4,
            "epochs": 2,
            "batch_size": 64,
            "preset": "light",
        },
        "segmentation": {
            "data": "digits-masks",
            "data_limit": 100,
            "data_validation": 0.0,
            "network": "fcn",
            "width": 4,
            "epochs": 2,
            "batch_size": 32,
            "preset": "light",
        },
    },
    "mini": {
        "images": {
            "data": "cifar10",
            "data_limit": 10_000,
            "data_validation": 0.1,
            "network": "simple_cnn",
            "width": 16,
            "epochs": 12,
            "batch_size": 128,
            "drop_every": 4,
            "precision": "32",
            "preset": "light",
        },
        "confidence": {
            "data": "cifar10",
            "data_classes": "dog,airplane",
            "data_validation": 0.0,
            "network": "simple_cnn",
            "width": 32,
            "epochs": 12,
            "precision": "32",
            "preset": "light",
        },
        "segmentation": {
            "data": "icoseg",
            "data_validation": 0.0,
            "network": "fcn",
            "width": 16,
            "epochs": 30,
            "batch_size": 32,
            "drop_every": 8,
            "precision": "32",
            "preset": "light",
        },
    },
    "paper": {
        "images": {"data_validation": 0.0},
        "choice": {"data_validation": 0.1},  # a choice is made, by what is held out
        "confidence": {
            "data": "cifar10",
            "data_classes": "dog,airplane",
            "data_validation": 0.0,
            "network": "simple_cnn",
            "width": 32,
        },
        "segmentation": {"data": "icoseg", "data_validation": 0.0, "network": "fcn"},
    },
}

# Durations of methods, where they are not the default share of the schedule: at `mini` those that its results were
# trained with, at `paper` the published ones.
METHODS: dict[str, dict[str, Options]] = {
    "smoke": {"amcl": {"warmup": 1}, "mcl": {"round": 1}, "mcl_kd": {"pretrain": 1}, "one": {"rampup": 2}},
    "mini": {
        "amcl": {"warmup": 5},
        "annealed": {"decay": 0.95},
        "mcl_kd": {"pretrain": 4},
        "one": {"rampup": 10},
    },
    "paper": {"annealed": {"decay": 0.95}, "one": {"rampup": 80}},
}

# What stands in for the paper's networks in the studies that compare them.
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
}
DATA = {"smoke": ("cifar10",), "mini": ("cifar10",)}  # of the paper's, those that have a stand-in
MEMBERS = {"smoke": 3}  # at most
UNSEEN = {"smoke": "digits/7,8,9", "mini": "svhn", "paper": "svhn"}
FLOW_WARMUP = {"smoke": 1, "mini": 5, "paper": 10}


@dataclass(frozen=True)
class Scale:
    """How large a study is, and with which seeds.

    >>> scale("mini", "ablation").spec("amcl", network="resnet18", k=1, seed=0).options["network"]
    'simple_cnn'
    >>> scale("paper", "ablation").spec("amcl", network="resnet18", k=1, seed=0).options["network"]
    'resnet18'
    """

    name: str
    seeds: tuple[int, ...] = (0,)

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
        """A run as the paper has it, brought to this scale; `kind` is the kind of study."""
        decided = SETTINGS[self.name].get(kind, SETTINGS[self.name]["images"])
        own = {"method": method, "members": min(members, MEMBERS.get(self.name, members)), "seed": seed}
        given = {name: value for name, value in options.items() if value is not None}
        return Spec({**METHODS[self.name].get(method, {}), **given, **decided, **own}, tuple(record))

    def compared(self, network: str, method: str, *, seed: int, **options: Any) -> Spec:
        """A run of a study that compares networks: each has a stand-in of its own."""
        whole = self.spec(method, seed=seed, network=network, **options)
        return Spec({**whole.options, **NETWORKS.get(self.name, {}).get(network, {})}, whole.record)

    def networks(self, published: Sequence[str]) -> tuple[str, ...]:
        """Those of the paper's networks that this scale has."""
        known = NETWORKS.get(self.name)
        return tuple(name for name in published if known is None or name in known)

    def data_sets(self, published: Sequence[str]) -> tuple[str, ...]:
        """Those of the paper's data sets that this scale has.

        >>> scale("mini").data_sets(("cifar10", "cifar100"))
        ('cifar10',)
        """
        return tuple(name for name in published if name in DATA.get(self.name, published))

    def few(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All values; the first and the last at smoke."""
        return tuple(values) if self.name != "smoke" else (values[0], values[-1])

    def overlaps(self, values: Sequence[int], members: int = 5) -> tuple[int, ...]:
        """The values of K that so many members allow."""
        return tuple(k for k in values if k <= min(members, MEMBERS.get(self.name, members)))

    def with_seeds(self, seeds: Sequence[int]) -> "Scale":
        """The same with other seeds."""
        return replace(self, seeds=tuple(seeds))


def scale(name: str, study: str | None = None, *, seeds: int | None = None) -> Scale:
    """A scale by its name, with as many seeds as given, or as the study has at it.

    >>> scale("mini", "ablation").seeds, scale("mini", "penalties").seeds
    ((0, 1, 2), (0,))
    """
    known_name("scale", name, NAMES)
    count = seeds if seeds is not None else FEWER.get(name, {}).get(study or "", SEEDS[name])
    if count < 1:
        raise UsageError(f"Expected at least 1 seed, got {count}.")
    return Scale(name, tuple(range(count)))

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import cos, pi
from typing import TYPE_CHECKING, Any, Literal

from torchmcl._utils.durations import Duration, check_duration, epochs_of, resolve_duration
from torchmcl._utils.signatures import constant
from torchmcl._utils.validation import OWN, plain_fields, validate_types
from torchmcl.errors import UsageError, known_name

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

# The numbers of epochs in Kim et al. 2022, appendix B.2. EPOCHS also has our numbers for two more data sets.
PUBLISHED_EPOCHS = {"cifar10": 100, "cifar100": 125, "tiny-imagenet": 150, "icoseg": 300}
EPOCHS = {**PUBLISHED_EPOCHS, "svhn": 100, "digits": 30}
DEFAULT_EPOCHS = 100
PUBLISHED_DROP = 25


@dataclass(frozen=True)
class Recipe:
    """The optimisation settings of a training run. The defaults are those of Kim et al. 2022, appendix B.2.

    Args:
        epochs: number of passes over the training set; by default the paper's number, 30 for digits, or 100 otherwise
        batch_size: number of examples per step, summed over all processes
        sampling: examples (each example once per epoch) or classes (same number of examples, balanced across classes)
        augment: transforms applied to the training images in order, such as flip,crop,color,cutout; by default none
        accumulate: number of parts into which each batch is split, to save memory
        class_weight: weights of the classes in the loss: balanced (inverse frequency), 1,2,0.5 or cat=2,dog=0.5
        optimizer: sgd (with Nesterov momentum), heavy_ball (SGD with plain momentum), adam (for regression) or adamw
        learning_rate: initial learning rate; for regression 0.001
        backbone_rate: initial learning rate of pretrained layers that are trained; by default a tenth of learning_rate
        momentum: momentum for sgd and heavy_ball
        weight_decay: weight decay, applied to the parameters in weight_decay_on
        weight_decay_on: all (every parameter) or weights (those of convolution and linear layers, without biases)
        schedule: learning rate schedule: step (multiply by drop_to every drop_every epochs), cosine or constant
        drop_every: number of epochs between drops of the learning rate; by default the paper's 25, scaled with epochs
        drop_at: numbers of epochs, or shares such as 50%,75%, after which the rate drops; replaces drop_every
        drop_to: factor by which each drop multiplies the learning rate
        sample_others: fraction r of the examples that a member leaves that it sees once the memory of amcl is fixed
        sample_correction: how the loss accounts for sample_others: prior (shifts the auxiliary logit) or weight (1/r)
        branch: epochs, or share such as 45%, in which one network is trained, whose copies become the members of amcl
        branch_groups: which classes a member owns then: random ones, or those that the network confuses (confusion)
        clip: maximum norm of the gradient; by default no clipping
        ema: decay of an exponential moving average of the weights, which is evaluated and saved; by default none
        patience: number of epochs without a lower validation metric, see monitor, before training stops; by default off
        monitor: metric for patience, such as nll; by default top1_error, or nll or crps for regression

    Raises:
        UsageError: If a name is unknown or a number is out of range.

    >>> Recipe(optimizer="adamw", learning_rate=0.001).schedule
    'step'
    """

    epochs: int | None = None
    batch_size: int = 128
    sampling: Literal["examples", "classes"] = "examples"
    augment: str | None = None
    accumulate: int = 1
    class_weight: str | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    backbone_rate: float | None = None
    momentum: float = 0.9
    weight_decay: float = 5e-4
    weight_decay_on: Literal["all", "weights"] = "all"
    schedule: str = "step"
    drop_every: int | None = None
    drop_at: str | None = None
    drop_to: float = 0.2
    sample_others: float = 1.0
    sample_correction: Literal["prior", "weight"] = "prior"
    branch: int | str | None = None
    branch_groups: Literal["random", "confusion"] = "random"
    clip: float | None = None
    ema: float | None = None
    patience: int | None = None
    monitor: str | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types(vars(self), Recipe)
        if not self.optimizer.startswith(OWN):
            known_name("kind of optimizer", self.optimizer, ("sgd", "heavy_ball", "adam", "adamw"))
        if not self.schedule.startswith(OWN):
            known_name("schedule", self.schedule, ("step", "cosine", "constant"))
        if self.augment is not None:
            for name in self.augment.split(","):
                known_name("transform", name.strip(), constant("data.transforms", "NAMES"))
        for duration in self._drops():
            check_duration(duration, "drop_at")
        if self.branch is not None:
            check_duration(self.branch, "branch")
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "drop_every", "patience"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"Expected {name} >= 1, got {value}.")
        if not (self.learning_rate > 0 and self.weight_decay >= 0 and 0 <= self.momentum < 1 and self.drop_to > 0):
            raise UsageError(
                "Expected learning_rate > 0, weight_decay >= 0, 0 <= momentum < 1 and drop_to > 0, got "
                f"{self.learning_rate}, {self.weight_decay}, {self.momentum} and {self.drop_to}."
            )
        for name in ("clip", "backbone_rate"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"Expected {name} > 0, got {value}.")
        if not 0 < self.sample_others <= 1:
            raise UsageError(f"Expected 0 < sample_others <= 1, got {self.sample_others}.")
        if self.sample_others == 1 and self.sample_correction != "prior":
            raise UsageError("The option sample_correction has no effect without sample_others < 1. Omit the option.")
        if self.branch is None and self.branch_groups != "random":
            raise UsageError("The option branch_groups has no effect without branch. Omit the option.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"Expected 0 < ema < 1, got {self.ema}.")

    def resolved(self, data: str) -> "Recipe":
        """Return the recipe with missing `epochs` and `drop_every` set to the defaults, and durations in epochs.

        >>> Recipe().resolved("cifar100").epochs, Recipe(epochs=20).resolved("cifar100").drop_every
        (125, 4)
        """
        epochs = self.length(data)
        drops = [str(resolve_duration(duration, epochs, "drop_at")) for duration in self._drops()]
        branch = None if self.branch is None else epochs_of(self.branch, epochs, "branch")
        every, at = self._drop(data), ",".join(drops) or None
        return replace(self, epochs=epochs, drop_every=every, drop_at=at, branch=branch)

    def length(self, data: str = "") -> int:
        """Return the number of epochs for a data set.

        >>> Recipe().length("cifar100"), Recipe(epochs=20).length("cifar100"), Recipe().length("folder:mine")
        (125, 20, 100)
        """
        return self.epochs or EPOCHS.get(data, DEFAULT_EPOCHS)

    def rate(self, epoch: int, data: str = "") -> float:
        """Return the learning rate in an epoch, counted from 1. Rates depend only on the epoch, so resuming is exact.

        >>> [Recipe().rate(epoch, "cifar10") for epoch in (1, 25, 26)]
        [0.1, 0.1, 0.020000000000000004]
        """
        return float(self.learning_rate) * self.factor(epoch, data)

    def factor(self, epoch: int, data: str = "") -> float:
        """Return the learning rate in an epoch divided by the initial learning rate.

        >>> [Recipe(drop_at="50%,75%", drop_to=0.1, epochs=300).factor(epoch) for epoch in (150, 151, 225)]
        [1.0, 0.1, 0.1]
        """
        match self.schedule:
            case "cosine":
                return 0.5 * (1 + cos(pi * (epoch - 1) / self.length(data)))
            case "constant":
                return 1.0
            case _ if self.drop_at:
                epochs = self.length(data)
                drops = (one if isinstance(one, int) else epochs_of(one, epochs, "drop_at") for one in self._drops())
                return float(self.drop_to) ** sum(epoch > drop for drop in drops)
            case _:
                return float(self.drop_to) ** ((epoch - 1) // self._drop(data))

    def _drop(self, data: str) -> int:
        published = EPOCHS.get(data, DEFAULT_EPOCHS)
        return self.drop_every or max(round(PUBLISHED_DROP * self.length(data) / published), 1)

    def _drops(self) -> list[Duration]:
        parts = [part.strip() for part in self.drop_at.split(",")] if self.drop_at else []
        return [int(part) if part.isdecimal() and len(part) < 10 else part for part in parts]

    def groups(self, network: "nn.Module") -> list[dict[str, Any]]:
        """Return the parameter groups of a network: its weights and, with the rate `backbone_rate`, pretrained ones.

        With `weight_decay_on="weights"`, parameters that do not decay are in groups of their own. The weights of a
        frozen trunk are in none of the groups.
        """
        from torchmcl.networks.backbone import Frozen, Pretrained

        frozen, pretrained = (
            {weight for part in network.modules() if isinstance(part, kind) for weight in part.parameters()}
            for kind in (Frozen, Pretrained)
        )
        weights = [weight for weight in network.parameters() if weight not in frozen]
        groups: list[dict[str, Any]] = [{"params": [weight for weight in weights if weight not in pretrained]}]
        if slow := [weight for weight in weights if weight in pretrained]:
            groups.append({"params": slow, "lr": self.backbone_rate or 0.1 * self.learning_rate})
        if self.weight_decay_on == "all":
            return groups
        decayed = set(_layer_weights(network))
        parts = [
            {**group, "params": [one for one in group["params"] if (one in decayed) == decays], **options}
            for group in groups
            for decays, options in ((True, {}), (False, {"weight_decay": 0.0}))
        ]
        return [part for part in parts if part["params"]]

    def build(self, parameters: "Iterable[Tensor] | Iterable[dict[str, Any]]") -> "Optimizer":
        """Return an optimiser for parameters or parameter groups."""
        from torch.optim import SGD, Adam, AdamW

        common: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer in ("sgd", "heavy_ball"):
            nesterov = self.optimizer == "sgd" and self.momentum > 0
            return SGD(parameters, momentum=self.momentum, nesterov=nesterov, **common)
        if self.optimizer == "adam":
            return Adam(parameters, **common)
        groups: list[Any] = list(parameters)
        weights = [weight for one in groups for weight in (one["params"] if isinstance(one, dict) else [one])]
        # On the CPU, the fused step takes a seventh of the time. On other devices, torch chooses.
        return AdamW(groups, fused=all(weight.device.type == "cpu" for weight in weights) or None, **common)


def _layer_weights(network: "nn.Module") -> "Iterator[Tensor]":
    """Yield the weights of convolution and linear layers, without biases."""
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    from torchmcl.ensemble.members import BatchedMembers

    for module in network.modules():
        if isinstance(module, nn.Linear | _ConvNd):
            yield module.weight
        elif isinstance(module, BatchedMembers):
            yield from (weight for name, weight in module.named_parameters() if name.endswith("_weight"))

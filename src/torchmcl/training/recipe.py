from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import cos, pi
from typing import TYPE_CHECKING, Literal

from torchmcl._utils.signatures import constant
from torchmcl._utils.validation import OWN, plain_fields, validate_types
from torchmcl.errors import UsageError, known_name

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

# Epochs of Kim et al. 2022, appendix B.2.
PUBLISHED_EPOCHS = {"cifar10": 100, "cifar100": 125, "tiny-imagenet": 150, "icoseg": 300}
EPOCHS = {**PUBLISHED_EPOCHS, "svhn": 100, "digits": 30}  # these two are ours
OTHERWISE = 100
PUBLISHED_DROP = 25


@dataclass(frozen=True)
class Recipe:
    """How weights are learned: appendix B.2 of Kim et al. 2022 by default.

    Args:
        epochs: passes over the training set; the paper's for the data set unless given
        batch_size: examples a step, over all processes together
        sampling: examples (an epoch shows each once) or classes (as many in all, but each class equally often)
        augment: transforms of training images, in this order: flip,crop,color,cutout; none unless given
        accumulate: parts that each batch is computed in, one after another, for batches that do not fit into memory
        class_weight: the factor of each class in the loss: balanced (by how rare it is), or 1,2,0.5, or cat=2,dog=0.5
        optimizer: sgd (with Nesterov momentum), adam or adamw
        learning_rate: at the start
        momentum: Nesterov's, for sgd
        weight_decay: for all weights
        schedule: step (times drop_to every drop_every epochs), cosine or constant
        drop_every: epochs between drops; the paper's 25, in proportion to the epochs, unless given
        drop_to: what is left of the learning rate after a drop
        clip: largest norm of the gradient; none unless given
        ema: decay of a moving average of the weights, which is then the model; none unless given
        patience: stop after so many epochs without a better top-1 error on the validation split; never unless given
    """

    epochs: int | None = None
    batch_size: int = 128
    sampling: Literal["examples", "classes"] = "examples"
    augment: str | None = None
    accumulate: int = 1
    class_weight: str | None = None
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "step"
    drop_every: int | None = None
    drop_to: float = 0.2
    clip: float | None = None
    ema: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types(vars(self), Recipe)
        if not self.optimizer.startswith(OWN):
            known_name("kind of optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        if not self.schedule.startswith(OWN):
            known_name("schedule", self.schedule, ("step", "cosine", "constant"))
        for name in ("epochs", "batch_size", "accumulate", "drop_every", "patience"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UsageError(f"Expected {name} of at least 1, got {value}.")
        if not (self.learning_rate > 0 and self.weight_decay >= 0 and 0 <= self.momentum < 1 and self.drop_to > 0):
            raise UsageError(
                "Expected learning_rate > 0, weight_decay >= 0, 0 <= momentum < 1 and drop_to > 0, got "
                f"{self.learning_rate}, {self.weight_decay}, {self.momentum} and {self.drop_to}."
            )
        if self.augment is not None:
            for name in self.augment.split(","):
                known_name("transform", name.strip(), constant("data.transforms", "NAMES"))
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"Expected clip > 0, got {self.clip}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UsageError(f"Expected ema between 0 and 1, got {self.ema}.")

    def resolved(self, data: str) -> "Recipe":
        """The recipe with the epochs and drops that a data set has unless they are given.

        >>> Recipe().resolved("cifar100").epochs, Recipe(epochs=20).resolved("cifar100").drop_every
        (125, 4)
        """
        return replace(self, epochs=self.length(data), drop_every=self._drop(data))

    def length(self, data: str = "") -> int:
        """Epochs on a data set.

        >>> Recipe().length("cifar100"), Recipe(epochs=20).length("cifar100"), Recipe().length("folder:mine")
        (125, 20, 100)
        """
        return self.epochs or EPOCHS.get(data, OTHERWISE)

    def rate(self, epoch: int, data: str = "") -> float:
        """Learning rate in an epoch, counted from 1: a function of the epoch only, so that resuming is exact.

        >>> [Recipe().rate(epoch, "cifar10") for epoch in (1, 25, 26)]
        [0.1, 0.1, 0.020000000000000004]
        """
        return float(self.learning_rate) * self.factor(epoch, data)

    def factor(self, epoch: int, data: str = "") -> float:
        """The part of the first learning rate that is left in an epoch."""
        match self.schedule:
            case "cosine":
                return 0.5 * (1 + cos(pi * (epoch - 1) / self.length(data)))
            case "constant":
                return 1.0
            case _:
                return float(self.drop_to) ** ((epoch - 1) // self._drop(data))

    def _drop(self, data: str) -> int:
        published = EPOCHS.get(data, OTHERWISE)
        return self.drop_every or max(round(PUBLISHED_DROP * self.length(data) / published), 1)

    def build(self, parameters: "Iterable[Tensor]") -> "Optimizer":
        """The optimiser."""
        from torch.optim import SGD, Adam, AdamW

        if self.optimizer == "sgd":
            return SGD(
                parameters,
                lr=self.learning_rate,
                momentum=self.momentum,
                nesterov=self.momentum > 0,
                weight_decay=self.weight_decay,
            )
        kind = Adam if self.optimizer == "adam" else AdamW
        return kind(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)

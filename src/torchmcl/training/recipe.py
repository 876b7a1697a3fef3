from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import cos, pi
from typing import TYPE_CHECKING, Any, Literal

from torchmcl._utils.signatures import constant
from torchmcl._utils.validation import OWN, plain_fields, validate_types
from torchmcl.errors import UsageError, known_name

if TYPE_CHECKING:
    from torch import Tensor
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
        optimizer: sgd (with Nesterov momentum), adam or adamw
        learning_rate: initial learning rate
        momentum: Nesterov momentum for sgd
        weight_decay: weight decay, applied to all weights
        schedule: learning rate schedule: step (multiply by drop_to every drop_every epochs), cosine or constant
        drop_every: number of epochs between drops of the learning rate; by default the paper's 25, scaled with epochs
        drop_to: factor by which each drop multiplies the learning rate
        clip: maximum norm of the gradient; by default no clipping
        ema: decay of an exponential moving average of the weights, which is evaluated and saved; by default none
        patience: number of epochs without a lower top-1 validation error after which training stops; by default off

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
                raise UsageError(f"Expected {name} >= 1, got {value}.")
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
            raise UsageError(f"Expected 0 < ema < 1, got {self.ema}.")

    def resolved(self, data: str) -> "Recipe":
        """Return the recipe with missing `epochs` and `drop_every` set to the defaults for a data set.

        >>> Recipe().resolved("cifar100").epochs, Recipe(epochs=20).resolved("cifar100").drop_every
        (125, 4)
        """
        return replace(self, epochs=self.length(data), drop_every=self._drop(data))

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
        """Return the learning rate in an epoch divided by the initial learning rate."""
        match self.schedule:
            case "cosine":
                return 0.5 * (1 + cos(pi * (epoch - 1) / self.length(data)))
            case "constant":
                return 1.0
            case _:
                return float(self.drop_to) ** ((epoch - 1) // self._drop(data))

    def _drop(self, data: str) -> int:
        published = EPOCHS.get(data, DEFAULT_EPOCHS)
        return self.drop_every or max(round(PUBLISHED_DROP * self.length(data) / published), 1)

    def build(self, parameters: "Iterable[Tensor]") -> "Optimizer":
        """Return an optimiser for the parameters."""
        from torch.optim import SGD, Adam, AdamW

        common: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            return SGD(parameters, momentum=self.momentum, nesterov=self.momentum > 0, **common)
        return Adam(parameters, **common) if self.optimizer == "adam" else AdamW(parameters, **common)

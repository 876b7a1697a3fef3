from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchmcl._utils.distributed import all_sum
from torchmcl.errors import UsageError
from torchmcl.structures.output import EnsembleOutput, describe
from torchmcl.structures.state import State

Cost = Callable[[Tensor, Tensor, State], Tensor]
Joint = Callable[[EnsembleOutput, Tensor, Tensor, State], Tensor]
C = TypeVar("C", bound=Cost)


def memberwise(cost: C) -> C:
    """Mark a cost as memberwise: a member's cost does not depend on the logits of other members."""
    cost.memberwise = True  # type: ignore[attr-defined]
    return cost


class EvaluationBatch(NamedTuple):
    """A batch to evaluate: `target` (B, …), members' `output`, `combined` prediction and example `index` (B,)."""

    target: Tensor
    output: EnsembleOutput
    combined: Tensor
    index: Tensor  # type: ignore[assignment]  # shadows a method of tuple


class Task(ABC):
    """Base class of tasks. To define your own task, derive a frozen dataclass from this class.

    `loss` and `outputs` are required. `classes` is the number of classes if the softmax of the outputs is a
    distribution over classes, otherwise None. `monitor` is the name of the metric for early stopping; lower is better.
    `headline` maps the metrics that a training run logs after each epoch to their format on the console.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Regression(Task):
    ...     outputs: int
    ...     def loss(self, outputs, target, state):
    ...         return (outputs - target).square().mean(2)
    >>> from torchmcl import methods
    >>> objective = methods.build("smcl", members=2, task=Regression(1)).new_objective()
    >>> objective(torch.tensor([[[1.0]], [[4.0]]]), torch.tensor([[3.0]])).loss
    tensor(1.)
    """

    outputs: int
    classes: int | None = None
    ignore_index: int | None = None
    monitor: ClassVar[str] = "ensemble_loss"
    headline: ClassVar[Mapping[str, str]] = {
        "oracle_loss": "oracle loss {:.4g}",
        "ensemble_loss": "ensemble loss {:.4g}",
    }

    def __repr__(self) -> str:
        given: tuple[Field, ...] = fields(self) if is_dataclass(self) else ()
        changed = {one.name: getattr(self, one.name) for one in given if getattr(self, one.name) != one.default}
        options = (f"{name}={getattr(value, '__name__', value)}" for name, value in changed.items())
        return f"{self.name}({', '.join(options)})"

    @property
    def name(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @property
    def options(self) -> Mapping[str, Any]:
        """Plain values from which `tasks.build(name, size, …)` creates the task for inference; {} if it cannot.

        The name of such a task is that of its class in lower case.
        """
        return {}

    @property
    def size(self) -> int:
        """The number of classes or target values."""
        return self.classes or self.outputs

    def for_training(self, target: Tensor, classes: Sequence[str], weight: Tensor | None = None) -> "Task":
        """Return the task with values that depend on the training set, such as the units of the targets.

        Args:
            target: The targets of all training examples, (N, …); a custom loader has none, (0,).
            classes: The names of the classes, () for numbers to predict.
            weight: The weights of the training examples, (N,).

        Raises:
            UsageError: If the targets do not match the task.
        """
        if classes and self.classes is None:
            raise UsageError(
                f"The task {self.name} has no classes, but the targets are {len(classes)} classes. Convert integer "
                "targets to floats, or leave task out."
            )
        return self

    @property
    def joint(self) -> tuple["Joint", ...]:
        """Costs of the ensemble as a whole that objectives add to their loss; none by default."""
        return ()

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        """Return the loss of each member on each example: outputs (M, B, …), target (B, …) -> (M, B)."""

    def loss_shape(self, outputs: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return the shape of the loss: (M, B), or (M, B, T) if examples have several targets that are assigned."""
        return tuple(outputs.shape[:2])

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check targets (B, …) against outputs (M, B, …) and return them in the type that `loss` needs.

        Raises:
            UsageError: If the number of targets differs from the number of examples.
        """
        if len(target) != outputs.shape[1]:
            raise UsageError(f"Expected one target per example, got {describe(outputs)} and {describe(target)}.")
        return target

    def combine(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the ensemble's prediction, by default the mean of the outputs: (M, B, …) -> (B, …)."""
        return EnsembleOutput.of(output).logits.mean(0)

    def metrics(self, output: EnsembleOutput, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return metrics per example, (B,) each; their mean over a data set is reported."""
        target = self.check(output.logits, target)
        each = self.loss(output.logits, target, State())
        return {"oracle_loss": each.amin(0), "ensemble_loss": self.loss(combined[None], target, State())[0]}

    def group(self, target: Tensor) -> Tensor | None:
        """Return the group (B,) under which a memory counts each example, or None if targets define no groups."""
        return None

    def valid(self, target: Tensor) -> Tensor | None:
        """Return a mask, bool (B, …), of the targets that losses and metrics include, or None for all targets."""
        return None

    def counted(self, target: Tensor) -> Tensor | None:
        """Return which examples have a target that losses and metrics include, bool (B,), or None if all have one."""
        return None

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Check targets and set the group in the state; tasks with loss weights also set these weights."""
        if state.sample_weight is not None:
            _check_weight(state.sample_weight, outputs.shape[1])
        target = self.check(outputs, target)
        group = self.group(target) if state.group is None else state.group
        return target, replace(state, group=group, shared={})

    def evaluate(self, batches: Iterable[EvaluationBatch], names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the content of metrics.json for a data set, by default the mean of each metric in `metrics`.

        In distributed training, each process passes its own part. `names` are the names of the classes.
        """
        sums: dict[str, Tensor] = {}
        count = torch.zeros((), dtype=torch.int64)
        for batch in batches:
            for name, values in self.metrics(batch.output, batch.combined, batch.target).items():
                sums[name] = sums.get(name, values.new_zeros((), dtype=torch.float64)) + values.double().sum()
            count = count.to(batch.target.device) + len(batch.target)
        examples = int(all_sum(count))
        means = {name: round(float(all_sum(value)) / examples, 6) for name, value in sums.items()}
        return {**means, "examples": examples}

    def summary(self, values: Mapping[str, Any]) -> str:
        """Return the metrics in `headline` on one line, given those of `evaluate`.

        >>> from torchmcl import Classification
        >>> Classification(2).summary({"oracle_error": 2.5, "top1_error": 4.0, "members": [5.0, 6.0]})
        'oracle error 2.50 %, top-1 error 4.00 %, members 5.0 6.0 %'
        """
        return ", ".join(text.format(values[name]) for name, text in self.headline.items() if name in values)


def _check_weight(weight: Tensor, B: int) -> None:
    if weight.shape != (B,) or not weight.is_floating_point():
        raise UsageError(f"Expected a floating point sample_weight (B,) = ({B},), got {describe(weight)}.")
    if weight.device.type == "cpu" and not (bool((weight >= 0).all()) and 0 < float(weight.sum()) < float("inf")):
        raise UsageError(
            "Expected finite, non-negative sample weights that are not all zero, "
            f"got {float(weight.min()):g} to {float(weight.max()):g}."
        )

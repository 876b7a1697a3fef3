"""Tasks: what is predicted, one value for everything that depends on it.

A task has the per-example loss, the check of targets, the number of outputs, the combiner, the metrics with the one
that is monitored, and the group that a memory counts. An integer stands for `Classification` with so many classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from torchmcl._utils.registry import Registry
from torchmcl.combine import mean
from torchmcl.costs import Cost, cross_entropy
from torchmcl.errors import UsageError
from torchmcl.metrics.errors import members_wrong, top1_wrong
from torchmcl.metrics.segmentation import pixel_errors
from torchmcl.opinions import Opinions, describe
from torchmcl.options import plain_number
from torchmcl.state import IGNORE, State

MOST = 100_000  # classes


class Task(ABC):
    """Base class of tasks. Derive a frozen dataclass from it for a task of your own.

    `loss` and `outputs` are required. `classes` is the number of classes where a softmax of the outputs is a
    distribution over them, otherwise None. `monitor` names the metric that early stopping watches; lower is better.

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

    @property
    def name(self) -> str:
        """The name of its class, for messages."""
        return type(self).__name__

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        """The loss of each member on each example: outputs (M, B, …), target (B, …) -> (M, B)."""

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check a batch of targets (B, …) against outputs (M, B, …) and return them in the type that `loss` needs.

        Raises:
            UsageError: if there is not one target per example
        """
        if len(target) != outputs.shape[1]:
            raise UsageError(f"Expected one target per example, got {describe(outputs)} and {describe(target)}.")
        return target

    def combine(self, output: Opinions | Tensor) -> Tensor:
        """The ensemble's prediction from outputs (M, B, …): their mean (B, …)."""
        return Opinions.of(output).logits.mean(0)

    def metrics(self, output: Opinions, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Metrics per example, (B,) each, of which the mean over a set is reported."""
        target = self.check(output.logits, target)
        each = self.loss(output.logits, target, State())
        return {"oracle_loss": each.amin(0), "ensemble_loss": self.loss(combined[None], target, State())[0]}

    def group(self, target: Tensor) -> Tensor | None:
        """The group of each example that a memory counts, (B,), or None where targets do not tell."""
        return None

    def valid(self, target: Tensor) -> Tensor | None:
        """Which targets count, bool (B, …); None where all do."""
        return None

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Check targets and complete the state with the group and the weights of the loss."""
        if state.sample_weight is not None:
            _check_weight(state.sample_weight, outputs.shape[1])
        target = self.check(outputs, target)
        group = self.group(target) if state.group is None else state.group
        return target, replace(state, group=group, shared={})


@dataclass(frozen=True, repr=False)
class _Labels(Task):
    """Targets that are classes, of an example or of each of its pixels. Abstract."""

    classes: int
    class_weight: tuple[float, ...] | None = None
    ignore_index: int | None = None
    loss: Cost = cross_entropy  # type: ignore[assignment]
    monitor: ClassVar[str] = "top1_error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", plain_number(self.classes))
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or not 2 <= self.classes <= MOST:
            raise UsageError(f"Expected 2 to {MOST:,} classes, got {self.classes!r}.")
        if self.ignore_index is not None and self.ignore_index < self.classes:  # such as 255 of 256 classes
            object.__setattr__(self, "ignore_index", None)
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", _weights(self.class_weight, self.classes))

    def __repr__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        said = ", ".join(f"{one.name}={given[one.name]!r}" for one in fields(self) if given[one.name] != one.default)
        return f"{self.name}({said})"

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """One output per class; a method may add an auxiliary one."""
        return self.classes

    def combine(self, output: Opinions | Tensor) -> Tensor:
        """The mean of the members' probabilities, (M, B, C, …) -> (B, C, …)."""
        return mean(output)

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check labels, (B, …) as integers or (B, C, …) as probabilities -> int64 or floating point.

        Values are looked at on the CPU only; on another device that would wait for it at every step.
        """
        B, C, *pixels = outputs.shape[1:]
        if target.is_floating_point():
            return self._check_soft(outputs, target)
        if target.shape != (B, *pixels) or target.is_complex() or target.dtype == torch.bool:
            raise UsageError(
                f"Expected logits (M, B, C, …) and an integer target (B, …), or a soft one (B, C, …), "
                f"got {describe(outputs)} and {describe(target)}."
            )
        if target.device.type == "cpu":
            known = target if self.ignore_index is None else target[target != self.ignore_index]
            if known.numel() and (int(known.min()) < 0 or int(known.max()) >= C):
                raise UsageError(f"Expected targets from 0 to {C - 1}, got {int(known.min())} to {int(known.max())}.")
        return target.long()

    def _check_soft(self, outputs: Tensor, target: Tensor) -> Tensor:
        B, C, *pixels = outputs.shape[1:]
        if target.ndim < 2 or (len(target), *target.shape[2:]) != (B, *pixels) or not 2 <= target.shape[1] <= C:
            raise UsageError(
                f"Expected logits (M, B, C, …) and an integer target (B, …), or a soft one (B, C, …), "
                f"got {describe(outputs)} and {describe(target)}."
            )
        if target.device.type == "cpu" and not (
            bool((target >= 0).all()) and torch.allclose(target.sum(1), target.new_ones(()), atol=1e-3)
        ):
            raise UsageError("Expected soft targets that are probabilities, from 0 on with a sum of 1, got others.")
        return target

    def group(self, target: Tensor) -> Tensor | None:
        """The class, (B,), of soft targets the likeliest; None for masks, where the state must name the group."""
        if target.is_floating_point():
            return target.argmax(1) if target.ndim == 2 else None
        return target if target.ndim == 1 else None

    def valid(self, target: Tensor) -> Tensor | None:
        """All labels but the one to ignore, bool (B, …); None where all count."""
        if self.ignore_index is None or target.is_floating_point():
            return None
        return target.ne(self.ignore_index)

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """As `Task.prepare`; labels to be ignored have no weight and become class 0, which costs can look up."""
        target, state = super().prepare(outputs, target, state)
        valid, sample_weight = self.valid(target), state.sample_weight
        if valid is not None:
            target = target.masked_fill(~valid, 0)
            state = replace(state, group=target if target.ndim == 1 else state.group)
        weight = self._loss_weight(target, outputs.dtype)
        if valid is not None and target.ndim == 1:
            sample_weight = valid.to(outputs.dtype) * (1 if sample_weight is None else sample_weight)
        elif valid is not None:  # so that the mean over all pixels becomes that over those that count
            counts = valid.flatten(1).sum(1).clamp_min(1).reshape(-1, *[1] * (valid.ndim - 1))
            weight = valid * (valid[0].numel() / counts) * (1 if weight is None else weight)
        return target, replace(state, sample_weight=sample_weight, loss_weight=weight)

    def _loss_weight(self, target: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The weight of each label in the loss, (B, …); None where all weigh 1."""
        if self.class_weight is None:
            return None
        weight = torch.tensor(self.class_weight, dtype=dtype, device=target.device)
        if target.is_floating_point():
            return torch.tensordot(target.to(dtype), weight[: target.shape[1]], dims=([1], [0]))
        return weight[target]


@final
@dataclass(frozen=True, repr=False)
class Classification(_Labels):
    """One class per example.

    Args:
        classes: the number of classes
        class_weight: the factor of each class in the loss; what a memory counts does not change
        ignore_index: a label whose examples do not count
        loss: the loss per example, (outputs (M, B, C), target (B,), state) -> (M, B)

    >>> Classification(3).loss(torch.zeros(1, 2, 3), torch.tensor([0, 2]), State())
    tensor([[1.0986, 1.0986]])
    """

    def metrics(self, output: Opinions, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Whether every member, and the ensemble, is wrong: (B,) each."""
        label = target.argmax(1) if target.is_floating_point() else target
        wrong = members_wrong(output.logits[:, :, : self.classes], label)
        return {"oracle_error": wrong.all(0).float(), "top1_error": top1_wrong(combined, label).float()}


@final
@dataclass(frozen=True, repr=False)
class Segmentation(_Labels):
    """One class per pixel. An image is taken or left as a whole, its loss the mean over its pixels.

    Args:
        classes: the number of classes
        class_weight: the factor of each class in the loss of its pixels
        ignore_index: a label whose pixels do not count, in losses, memories and metrics; None where there is none
        loss: the loss per example, (outputs (M, B, C, …), target (B, …), state) -> (M, B)

    >>> task = Segmentation(2, ignore_index=255)
    >>> target, state = task.prepare(torch.zeros(1, 1, 2, 1, 2), torch.tensor([[[1, 255]]]), State())
    >>> task.loss(torch.tensor([[[[[0.0, 9.0]], [[0.0, 0.0]]]]]), target, state)
    tensor([[0.6931]])
    """

    ignore_index: int | None = IGNORE

    def metrics(self, output: Opinions, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The fraction of wrong pixels of the best member, and of the ensemble: (B,) each."""
        members = pixel_errors(output.logits[:, :, : self.classes], target, self.ignore_index)
        return {
            "oracle_error": members.amin(0),
            "top1_error": pixel_errors(combined[None], target, self.ignore_index)[0],
        }


LABELS = Classification(2)  # of a plain cost: labels, as many as there are outputs


def _weights(given: Any, classes: int) -> tuple[float, ...]:
    try:
        weights = tuple(float(weight) for weight in given)
    except (TypeError, ValueError):
        weights = ()
    if len(weights) != classes or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise UsageError(
            f"Expected a finite class_weight from 0 on for each of {classes} classes, not all zero, got {given}."
        )
    return weights


def _check_weight(weight: Tensor, B: int) -> None:
    if weight.shape != (B,) or not weight.is_floating_point():
        raise UsageError(f"Expected a floating point sample_weight (B,) = ({B},), got {describe(weight)}.")
    if weight.device.type == "cpu" and not (bool((weight >= 0).all()) and 0 < float(weight.sum()) < float("inf")):
        raise UsageError(
            "Expected sample weights from 0 on, finite and not all zero, "
            f"got {float(weight.min()):g} to {float(weight.max()):g}."
        )


def as_task(task: "Task | int") -> Task:
    """A task, or a number of classes for `Classification`.

    >>> as_task(10)
    Classification(classes=10)
    """
    return task if isinstance(task, Task) else Classification(task)


TaskBuilder = Callable[..., Task]
_TASKS: Registry[TaskBuilder] = Registry("task")


def classification(classes: int, **options: Any) -> Classification:
    """One class per example."""
    return Classification(classes, **options)


def segmentation(classes: int, **options: Any) -> Segmentation:
    """One class per pixel."""
    return Segmentation(classes, **options)


_TASKS.register(classification)
_TASKS.register(segmentation)


def names() -> tuple[str, ...]:
    """The names of all tasks, registered ones included."""
    return _TASKS.names()


def register(task: TaskBuilder) -> TaskBuilder:
    """Register a task of your own under the function's or class's name: `(classes) -> Task`."""
    return _TASKS.register(task)


def build(name: str, classes: int) -> Task:
    """A task by its name, for so many classes.

    >>> build("classification", 3).outputs
    3
    """
    built = _TASKS.find(name)(classes)
    if not isinstance(built, Task):
        raise UsageError(f"Expected the task {name} to be a Task, got {type(built).__name__}. Return a Task.")
    return built

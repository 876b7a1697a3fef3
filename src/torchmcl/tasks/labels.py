from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchmcl._utils.validation import plain_number
from torchmcl.errors import UsageError
from torchmcl.structures.output import EnsembleOutput, describe, to_float32
from torchmcl.structures.state import IGNORE, State
from torchmcl.structures.task import Cost, Task, memberwise
from torchmcl.tasks.combiners import mean

MAX_CLASSES = 100_000


@memberwise
def cross_entropy(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """Compute the cross-entropy l_m = -log p_m(y), (M, B), the task loss in eq. 1 to 5 of Kim et al. 2022.

    Args:
        logits: (M, B, C, …).
        target: Classes (B, …), or probabilities y (B, C, …), for which the loss is -sum_c y_c log p_m(c).
        state: The state of training. Its loss weights apply to the mean over pixels.

    >>> cross_entropy(torch.zeros(2, 1, 4), torch.tensor([3]), State())
    tensor([[1.3863],
            [1.3863]])
    """
    log_p = log_probabilities(logits, state)
    if target.is_floating_point():
        return state.by_example(-(target * log_p[:, :, : target.shape[1]]).sum(2))
    return of_label(log_p, target.expand(len(logits), *target.shape), state)


def log_probabilities(logits: Tensor, state: State) -> Tensor:
    """Return log p_m (M, B, C, …), computed once for all costs of a batch.

    >>> log_probabilities(torch.zeros(1, 1, 2), State())
    tensor([[[-0.6931, -0.6931]]])
    """
    source, graph, log_p = state.shared.get("log_p", (None, None, None))
    if source is not logits or graph != torch.is_grad_enabled():
        log_p = to_float32(logits).log_softmax(2)
        state.shared["log_p"] = logits, torch.is_grad_enabled(), log_p
    return log_p


def of_label(log_p: Tensor, label: Tensor, state: State) -> Tensor:
    """Return -log p_m(label): log_p (M, B, C, …), label (M, B, …) -> (M, B)."""
    return state.by_example(-log_p.gather(2, label.unsqueeze(2)).squeeze(2))


@dataclass(frozen=True, repr=False)
class Labels(Task):
    """Abstract base class for tasks with classes as targets, one per example or per pixel."""

    classes: int
    class_weight: tuple[float, ...] | None = None
    ignore_index: int | None = None
    loss: Cost = cross_entropy  # type: ignore[assignment]
    monitor: ClassVar[str] = "top1_error"
    dense: ClassVar[bool] = False
    headline: ClassVar[Mapping[str, str]] = {
        "oracle_error": "oracle error {:.2f} %",
        "top1_error": "top-1 error {:.2f} %",
    }

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", plain_number(self.classes))
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or not 2 <= self.classes <= MAX_CLASSES:
            raise UsageError(f"Expected 2 to {MAX_CLASSES:,} classes, got {self.classes!r}.")
        if self.ignore_index == IGNORE and self.classes > IGNORE:  # 255 is a valid class
            object.__setattr__(self, "ignore_index", None)
        if not (self.ignore_index is None or type(self.ignore_index) is int):
            raise UsageError(f"Expected an integer or None for ignore_index, got {self.ignore_index!r}.")
        if self.ignore_index is not None and 0 <= self.ignore_index < self.classes:
            raise UsageError(f"Expected ignore_index < 0 or >= {self.classes}, got {self.ignore_index}.")
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", _weights(self.class_weight, self.classes))

    def for_training(self, target: Tensor, classes: Sequence[str], weight: Tensor | None = None) -> "Labels":
        """Check that there is one label per example or, for masks, per pixel, and that the classes are those given."""
        if target.is_floating_point() or self.dense != (target.ndim > 1):
            raise UsageError(f"The task {self.name} does not match these targets. Leave task out.")
        if self.classes != len(classes):
            raise UsageError(f"The data has {len(classes)} classes, but the task has {self.classes}. Leave task out.")
        return self

    def summary(self, values: Mapping[str, Any]) -> str:
        """Return the errors of the ensemble and of the members on one line."""
        members = "".join(f" {error:.1f}" for error in values.get("members", ()))
        return f"{super().summary(values)}{members and f', members{members} %'}"

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """The number of outputs, one per class; a method can add an auxiliary output."""
        return self.classes

    def combine(self, output: EnsembleOutput | Tensor) -> Tensor:
        """Return the mean of the members' probabilities: (M, B, C, …) -> (B, C, …)."""
        return mean(output)

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check targets, integer classes (B, …) or probabilities (B, C, …), against outputs (M, B, C, …).

        Raises UsageError if a shape, type or value is wrong. Values are checked only on the CPU, because a check on
        another device would synchronise that device at every step.
        """
        B, C, *pixels = outputs.shape[1:]
        if target.is_floating_point():
            least = self.classes if self.classes <= C else 2  # the number of classes is unknown for a plain cost
            matches = target.ndim > 1 and (len(target), *target.shape[2:]) == (B, *pixels)
            matches = matches and least <= target.shape[1] <= min(C, self.classes)
        else:
            matches = target.shape == (B, *pixels) and not target.is_complex() and target.dtype != torch.bool
        if not matches:
            raise UsageError(
                f"Expected logits (M, B, C, …) and an integer target (B, …) or a soft target (B, C, …), "
                f"got {describe(outputs)} and {describe(target)}."
            )
        if target.device.type == "cpu":
            self._check_values(target, min(C, self.classes) - 1)
        return target if target.is_floating_point() else target.long()

    def _check_values(self, target: Tensor, last: int) -> None:
        if target.is_floating_point():
            if not (bool((target >= 0).all()) and torch.allclose(target.sum(1), target.new_ones(()), atol=1e-3)):
                raise UsageError("The soft targets are not probabilities that sum to 1. Normalise them.")
            return
        known = target if self.ignore_index is None else target[target != self.ignore_index]
        if known.numel() and (int(known.min()) < 0 or int(known.max()) > last):
            raise UsageError(f"Expected targets from 0 to {last}, got {int(known.min())} to {int(known.max())}.")

    def group(self, target: Tensor) -> Tensor | None:
        """Return the class of each example (B,), the most likely one for soft targets, or None for masks."""
        if target.is_floating_point():
            return target.argmax(1) if target.ndim == 2 else None
        return target if target.ndim == 1 else None

    def valid(self, target: Tensor) -> Tensor | None:
        """Return which labels are not ignored, bool (B, …), or None if no label can be ignored."""
        if self.ignore_index is None or target.is_floating_point():
            return None
        return target.ne(self.ignore_index)

    def counted(self, target: Tensor) -> Tensor | None:
        """Return which examples have a label that is not ignored, bool (B,), or None if all have one."""
        valid = self.valid(target)
        return valid if valid is None or valid.ndim == 1 else valid.flatten(1).any(1)

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Check targets and complete the state; ignored labels get weight 0 and class 0, a valid class index."""
        passed = state.group
        target, state = super().prepare(outputs, target, state)
        valid, counted = self.valid(target), self.counted(target)
        if valid is None or counted is None:
            return target, replace(state, loss_weight=self._loss_weight(target, outputs.dtype))
        target = target.masked_fill(~valid, 0)
        weight = self._loss_weight(target, outputs.dtype)
        if valid.ndim > 1:  # turns the mean over all pixels into the mean over valid pixels
            counts = valid.flatten(1).sum(1).clamp_min(1).reshape(-1, *[1] * (valid.ndim - 1))
            weight = valid * (valid[0].numel() / counts) * (1 if weight is None else weight)
        sample_weight = counted.to(outputs.dtype) * (1 if state.sample_weight is None else state.sample_weight)
        group = self.group(target) if passed is None else passed
        return target, replace(state, group=group, sample_weight=sample_weight, loss_weight=weight)

    def _loss_weight(self, target: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the weight of each label in the loss, (B, …), or None if all weights are 1."""
        if self.class_weight is None:
            return None
        weight = on_device(target.device, dtype, self.class_weight)
        if target.is_floating_point():
            return torch.tensordot(target.to(dtype), weight[: target.shape[1]], dims=([1], [0]))
        return weight[target]


@cache
def on_device(device: torch.device, dtype: torch.dtype, values: tuple[float, ...]) -> Tensor:
    """Return constants as a tensor, created once instead of at every step."""
    return torch.tensor(values, dtype=dtype, device=device)


def _weights(given: Any, classes: int) -> tuple[float, ...]:
    try:
        weights = tuple(float(weight) for weight in given)
    except (TypeError, ValueError):
        weights = ()
    if len(weights) != classes or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise UsageError(
            f"Expected class_weight to be {classes} finite, non-negative values, not all of them zero, got {given}."
        )
    return weights


def percent(fraction: Tensor) -> float:
    """Convert a fraction to percent, rounded to four decimals.

    >>> percent(torch.tensor(0.25))
    25.0
    """
    return round(100 * float(fraction), 4)


def percents(fractions: Tensor) -> list[float]:
    """Convert fractions (M,), or the scalar that torchmetrics returns for one member, to percent."""
    return [percent(fraction) for fraction in fractions.flatten()]

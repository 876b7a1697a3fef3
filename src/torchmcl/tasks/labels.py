from dataclasses import dataclass, fields, replace
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

MOST = 100_000  # classes


@memberwise
def cross_entropy(logits: Tensor, target: Tensor, state: State) -> Tensor:
    """l_m = -log p_m(y), the task's own loss: eq. 1 to 5 of Kim et al. 2022; of soft targets -sum_c y_c log p_m(c).

    >>> cross_entropy(torch.zeros(2, 1, 4), torch.tensor([3]), State())
    tensor([[1.3863],
            [1.3863]])
    """
    log_p = log_probabilities(logits, state)
    if target.is_floating_point():
        return state.by_example(-(target * log_p[:, :, : target.shape[1]]).sum(2))
    return of_label(log_p, target.expand(len(logits), *target.shape), state)


def log_probabilities(logits: Tensor, state: State) -> Tensor:
    """log p_m (M, B, C, …), computed once for all costs of a batch.

    >>> log_probabilities(torch.zeros(1, 1, 2), State())
    tensor([[[-0.6931, -0.6931]]])
    """
    known, graph, log_p = state.shared.get("log_p", (None, None, None))
    if known is not logits or graph != torch.is_grad_enabled():
        log_p = to_float32(logits).log_softmax(2)
        state.shared["log_p"] = logits, torch.is_grad_enabled(), log_p
    return log_p


def of_label(log_p: Tensor, label: Tensor, state: State) -> Tensor:
    """-log p_m(label), log_p (M, B, C, …), label (M, B, …) -> (M, B)."""
    return state.by_example(-log_p.gather(2, label.unsqueeze(2)).squeeze(2))


@dataclass(frozen=True, repr=False)
class Labels(Task):
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
        if self.ignore_index == IGNORE and self.classes > IGNORE:  # then it is a class
            object.__setattr__(self, "ignore_index", None)
        if not (self.ignore_index is None or type(self.ignore_index) is int):
            raise UsageError(f"Expected a whole number as ignore_index, got {self.ignore_index!r}.")
        if self.ignore_index is not None and 0 <= self.ignore_index < self.classes:
            raise UsageError(f"Expected an ignore_index that is no class, got {self.ignore_index} of {self.classes}.")
        if self.class_weight is not None:
            object.__setattr__(self, "class_weight", _weights(self.class_weight, self.classes))

    def __repr__(self) -> str:
        given = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        said = (
            f"{name}={getattr(value, '__name__', value)}" for name, (value, usual) in given.items() if value != usual
        )
        return f"{self.name}({', '.join(said)})"

    @property
    def outputs(self) -> int:  # type: ignore[override]
        """One output per class; a method may add an auxiliary one."""
        return self.classes

    def combine(self, output: EnsembleOutput | Tensor) -> Tensor:
        """The mean of the members' probabilities, (M, B, C, …) -> (B, C, …)."""
        return mean(output)

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check labels, (B, …) as integers or (B, C, …) as probabilities -> int64 or floating point.

        Values are looked at on the CPU only; on another device that would wait for it at every step.
        """
        B, C, *pixels = outputs.shape[1:]
        if target.is_floating_point():
            return self._check_soft(outputs, target)
        last = min(C, self.classes) - 1
        if target.shape != (B, *pixels) or target.is_complex() or target.dtype == torch.bool:
            raise UsageError(
                f"Expected logits (M, B, C, …) and an integer target (B, …), or a soft one (B, C, …), "
                f"got {describe(outputs)} and {describe(target)}."
            )
        if target.device.type == "cpu":
            known = target if self.ignore_index is None else target[target != self.ignore_index]
            if known.numel() and (int(known.min()) < 0 or int(known.max()) > last):
                raise UsageError(f"Expected targets from 0 to {last}, got {int(known.min())} to {int(known.max())}.")
        return target.long()

    def _check_soft(self, outputs: Tensor, target: Tensor) -> Tensor:
        B, C, *pixels = outputs.shape[1:]
        least = self.classes if self.classes <= C else 2  # a plain cost does not know how many classes there are
        fits = target.ndim > 1 and (len(target), *target.shape[2:]) == (B, *pixels)
        if not fits or not least <= target.shape[1] <= min(C, self.classes):
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

    def counted(self, target: Tensor) -> Tensor | None:
        """Which examples have a label that counts, bool (B,); None where all have."""
        valid = self.valid(target)
        return valid if valid is None or valid.ndim == 1 else valid.flatten(1).any(1)

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """As `Task.prepare`; labels to be ignored have no weight and become class 0, which costs can look up."""
        given = state.group
        target, state = super().prepare(outputs, target, state)
        valid, counted = self.valid(target), self.counted(target)
        if valid is None or counted is None:
            return target, replace(state, loss_weight=self._loss_weight(target, outputs.dtype))
        target = target.masked_fill(~valid, 0)
        weight = self._loss_weight(target, outputs.dtype)
        if valid.ndim > 1:  # so that the mean over all pixels becomes that over those that count
            counts = valid.flatten(1).sum(1).clamp_min(1).reshape(-1, *[1] * (valid.ndim - 1))
            weight = valid * (valid[0].numel() / counts) * (1 if weight is None else weight)
        often = counted.to(outputs.dtype) * (1 if state.sample_weight is None else state.sample_weight)
        group = self.group(target) if given is None else given
        return target, replace(state, group=group, sample_weight=often, loss_weight=weight)

    def _loss_weight(self, target: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The weight of each label in the loss, (B, …); None where all weigh 1."""
        if self.class_weight is None:
            return None
        weight = _on(target.device, dtype, self.class_weight)
        if target.is_floating_point():
            return torch.tensordot(target.to(dtype), weight[: target.shape[1]], dims=([1], [0]))
        return weight[target]


@cache
def _on(device: torch.device, dtype: torch.dtype, weights: tuple[float, ...]) -> Tensor:
    """Moved once, not at every step."""
    return torch.tensor(weights, dtype=dtype, device=device)


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


def percent(fraction: Tensor) -> float:
    """A fraction in percent, to a ten-thousandth.

    >>> percent(torch.tensor(0.25))
    25.0
    """
    return round(100 * float(fraction), 4)


def percents(fractions: Tensor) -> list[float]:
    """Fractions in percent; torchmetrics hands the one value of one member over as a scalar."""
    return [percent(fraction) for fraction in fractions.flatten()]

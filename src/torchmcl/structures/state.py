from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.durations import Duration, epochs_of
from torchmcl.errors import UsageError

HOW_TO_PASS = "Pass a state: objective(output, target, State(epoch, epochs))."
IGNORE = 255  # the label of pixels to ignore, as in Pascal VOC


@dataclass(frozen=True)
class State:
    """The state of training that the training loop passes to an objective.

    Args:
        epoch: The epoch, counted from 1, for objectives that change over training.
        epochs: The number of epochs in the schedule, for durations that are a share of the schedule.
        group: (B,), the group under which a memory counts each example; in classification, the default is the class.
        index: (B,), the examples' indices in the training set, for methods that store values per example (MCL, MCL-KD).
        sample_weight: (B,), the weight of each example in losses and memories, by default 1.
        record: Whether a memory counts this batch and phases advance; by default, only if the objective is in training
            mode and gradients are enabled, so that computing a validation loss does not change the objective.
        loss_weight: (B, …), the weight of each label in the loss, set by the task. Memories ignore it.
        member_weight: (M, B), the weight of each example in the loss of each member, by default 1.
        shared: Intermediate results that the costs of one batch share.

    >>> State(epoch=3, epochs=100)
    State(epoch=3, epochs=100, group=None, index=None, sample_weight=None, record=None)
    """

    epoch: int | None = None
    epochs: int | None = None
    group: Tensor | None = None
    index: Tensor | None = None
    sample_weight: Tensor | None = None
    record: bool | None = None
    loss_weight: Tensor | None = field(default=None, repr=False)
    member_weight: Tensor | None = field(default=None, repr=False)
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def at_epoch(self) -> int:
        """Return the epoch; raise UsageError if it is not set."""
        if self.epoch is None:
            raise UsageError(f"This objective changes over training and needs the epoch. {HOW_TO_PASS}")
        return self.epoch

    def schedule(self) -> tuple[int, int]:
        """Return the epoch and the number of epochs; raise UsageError if either is not set."""
        epoch = self.at_epoch()
        if self.epochs is None:
            raise UsageError(f"This objective follows a schedule and needs the number of epochs. {HOW_TO_PASS}")
        return epoch, self.epochs

    def epochs_in(self, duration: Duration, option: str, *, remaining: int = 1) -> int:
        """Convert a duration to a number of epochs; see `epochs_of`. An integer is valid even without a schedule."""
        if self.epochs is None and not isinstance(duration, str):
            return duration
        return epochs_of(duration, self.schedule()[1], option, remaining=remaining)

    def recording(self, module: nn.Module) -> bool:
        """Return whether `module` may change its memory or phase for this batch."""
        return module.training and torch.is_grad_enabled() if self.record is None else self.record

    def mean(self, cost: Tensor) -> Tensor:
        """Return the weighted mean over examples and pixels, sum_b s_b cost_b / sum_b s_b: (B, …) -> scalar.

        s is `sample_weight`. If `loss_weight` has as many dimensions as the cost, the cost is first multiplied by it.

        >>> State(sample_weight=torch.tensor([3.0, 1.0])).mean(torch.tensor([1.0, 2.0]))
        tensor(1.2500)
        """
        if self.loss_weight is not None and self.loss_weight.ndim == cost.ndim:
            cost = cost * self.loss_weight.to(cost.dtype)
        if self.sample_weight is None:
            return cost.mean()
        by_example, weight = cost.flatten(1).mean(1) if cost.ndim > 1 else cost, self.sample_weight.to(cost.dtype)
        return (weight * by_example).sum() / weight.sum().clamp_min(torch.finfo(cost.dtype).tiny)

    def by_example(self, cost: Tensor) -> Tensor:
        """Return the mean over pixels, weighted by the task's loss weights: (M, B, …) -> (M, B)."""
        if cost.ndim <= 2:
            return cost
        if self.loss_weight is not None and self.loss_weight.ndim > 1:
            cost = cost * self.loss_weight.to(cost.dtype)
        return cost.flatten(2).mean(2)

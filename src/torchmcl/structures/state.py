from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.durations import Duration, epochs_of
from torchmcl.errors import UsageError

IGNORE = 255  # the label of pixels that do not count, as in Pascal VOC


@dataclass(frozen=True)
class State:
    """Where training stands, passed to an objective by the training loop.

    Args:
        epoch: the epoch, counted from 1; objectives that change over training need it
        epochs: the number of epochs in the schedule; needed where a duration is a share of it
        group: (B,) the class that a memory counts: the target by default, for segmentation the group of each image
        index: (B,) the number of each example in the training set, needed by methods that remember single examples
            (MCL, MCL-KD)
        sample_weight: (B,) how often each example counts, in losses and memories alike; once by default
        record: whether a memory counts this batch, and phases advance. By default only while the objective is in
            training mode and gradients are enabled, so that a validation loss leaves no trace
        loss_weight: (B, …) the factor of each label in the loss, set by the task; memories do not count by it
        shared: what the costs of one batch compute once for all of them

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
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def at_epoch(self) -> int:
        """The epoch; raises UsageError where the loop did not state it."""
        if self.epoch is None:
            raise UsageError(
                "Expected the epoch, since this objective changes over training, got none. "
                "Pass a state: objective(output, target, State(epoch, epochs))."
            )
        return self.epoch

    def schedule(self) -> tuple[int, int]:
        """The epoch and the number of epochs; raises UsageError where the loop did not state them."""
        epoch = self.at_epoch()
        if self.epochs is None:
            raise UsageError(
                f"Expected the number of epochs, since this objective follows a schedule, got epoch {epoch} only. "
                "Pass a state: objective(output, target, State(epoch, epochs))."
            )
        return epoch, self.epochs

    def epochs_in(self, duration: Duration, option: str, *, remaining: int = 1) -> int:
        """A duration in epochs of this schedule, see `epochs_of`; a whole number needs no schedule."""
        if self.epochs is None and not isinstance(duration, str):
            return duration
        return epochs_of(duration, self.schedule()[1], option, remaining=remaining)

    def recording(self, module: nn.Module) -> bool:
        """Whether `module` may change what it remembers."""
        return module.training and torch.is_grad_enabled() if self.record is None else self.record

    def mean(self, cost: Tensor) -> Tensor:
        """The mean over examples and pixels, (B, …) -> scalar: sum_b s_b cost_b / sum_b s_b.

        Costs of pixels are multiplied by the loss weights of pixels, costs of examples by those of examples.

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
        """(M, B, …) -> (M, B): the mean over pixels, weighted where the task weighs them."""
        if cost.ndim <= 2:
            return cost
        if self.loss_weight is not None and self.loss_weight.ndim > 1:
            cost = cost * self.loss_weight.to(cost.dtype)
        return cost.flatten(2).mean(2)

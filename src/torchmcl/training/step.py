"""One step of training: `forward` computes the loss, `Step` does the rest, up to the update of the weights."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmcl._utils.distributed import average, total
from torchmcl.data.loader import Batch
from torchmcl.ensemble import Ensemble
from torchmcl.objectives.objective import PerPixel, memory_of, task_of
from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.state import State
from torchmcl.structures.task import Task
from torchmcl.training.memberwise import memberwise_backward

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from torchmcl.training.device import OneDevice


class Forward(NamedTuple):
    """What the objective makes of a batch, and the members' outputs that it was made of."""

    outcome: Outcome
    output: EnsembleOutput


def forward(ensemble: Callable[[Tensor], EnsembleOutput], objective: nn.Module, batch: Batch, state: State) -> Forward:
    """Run a batch through an ensemble and its objective, with gradients; `state` needs the epoch and the epochs only.

    It needs no `Training`: a loop of your own goes on with `forward(…).outcome.loss.backward()`.

    >>> from torchmcl import methods
    >>> method = methods.build("smcl", members=2, classes=3)
    >>> ensemble = Ensemble.build(method, "mlp", inputs=4, width=8)
    >>> batch = Batch(torch.ones(3, 4), torch.tensor([0, 1, 2]), torch.arange(3), None, total=3)
    >>> outcome, output = forward(ensemble, method.new_objective(), batch, State(epoch=1, epochs=10))
    >>> outcome.loss.requires_grad, outcome.weights.sum(0), output.logits.shape
    (True, tensor([1., 1., 1.]), torch.Size([2, 3, 3]))
    """
    output = ensemble(batch.x)
    return Forward(objective(output, batch.target, state_of(batch, state, task_of(objective))), output)


def state_of(batch: Batch, state: State, task: Task) -> State:
    """The state with what a batch says of its examples: group, number and weight."""
    return replace(state, group=group_of(batch, task), index=batch.index, sample_weight=batch.weight)


def group_of(batch: Batch, task: Task) -> Tensor | None:
    """The group of each example that a memory counts, (B,): the batch's own, or the one that the task names."""
    return task.group(batch.target) if batch.group is None else batch.group


def wanted(objective: nn.Module, output: EnsembleOutput, target: Tensor, state: State, weights: Tensor) -> Tensor:
    """Who would take what by loss, (M, B), whatever a memory decides; `weights` (M, B) is who took it.

    For masks it is not computed, since it would cost as much as the loss.
    """
    memory, by_loss = memory_of(objective), getattr(objective, "chosen_by_loss", None)
    if memory is None or not memory.fixed or by_loss is None or output.logits.ndim > 3:
        return weights
    chosen: Tensor = by_loss(output, target, state)
    return chosen


class Stepped(NamedTuple):
    """One step of this process's part of a batch.

    `loss` is the mean loss times the number of examples, those with a weight counted by it, in units of the mean
    weight; (M, B) each, `weights` is who took what and `wanted` who would have by loss.
    """

    loss: Tensor
    weights: Tensor
    wanted: Tensor


@final
class Step:
    """Steps of an optimiser: forward and backward of a batch, clipping, and the update.

    Args:
        fabric: moves gradients between processes, and scales them where the precision needs it
        plain: the ensemble as it was built
        ensemble: the same, as `fabric` set it up, perhaps compiled
        objective: what it learns by
        optimizer: as `fabric` set it up
        accumulate: parts that a batch is computed in
        clip: the largest norm of the gradient
        lean: hold the activations of one member at a time
        mean_weight: of all training examples. The loss of a batch is a mean; a batch of little weight is to move the
            networks little
    """

    def __init__(
        self,
        fabric: "Fabric | OneDevice",
        plain: Ensemble,
        ensemble: Any,
        objective: nn.Module,
        optimizer: Optimizer,
        *,
        accumulate: int = 1,
        clip: float | None = None,
        lean: bool = False,
        mean_weight: float = 1.0,
    ) -> None:
        self.fabric, self.plain, self.ensemble = fabric, plain, ensemble
        self.objective, self.optimizer = objective, optimizer
        self.accumulate, self.clip, self.lean, self.mean_weight = accumulate, clip, lean, mean_weight
        self.task, self.by_pixel = task_of(objective), isinstance(objective, PerPixel)

    def __call__(self, batch: Batch, state: State) -> Stepped:
        """Learn from a batch; `state` holds the epoch and the epochs."""
        self.optimizer.zero_grad()
        done, whole = [], self._whole(batch)
        for part, last in parts(batch, self.accumulate, self.fabric.world_size):
            with self._synchronised(last):
                done.append(self._backward(part, state, whole))
        if self.clip:
            # The loss says whether training has diverged, and a scaler skips steps that overflow.
            self.fabric.clip_gradients(
                self.ensemble, cast(Any, self.optimizer), max_norm=self.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        if len(done) == 1:
            return done[0]
        losses, weights, wanted = zip(*done, strict=True)
        return Stepped(sum(losses[1:], losses[0]), torch.cat(weights, 1), torch.cat(wanted, 1))

    def _backward(self, batch: Batch, state: State, whole: int | Tensor) -> Stepped:
        """Forward and backward of a batch, or of a part of it, which is its amount of the `whole` step."""
        state, amount = state_of(batch, state, self.task), self._amount(batch)

        def backward(loss: Tensor) -> None:
            # Gradients are averaged over processes, whose parts may differ in size and weight.
            self.fabric.backward(loss * (amount * self.fabric.world_size / whole))

        if self.lean:
            loss, weights, logits = memberwise_backward(
                self.plain,
                self.objective,
                batch.x,
                batch.target,
                state,
                backward=backward,
                autocast=self.fabric.autocast,
            )
            average([p.grad for p in self.plain.parameters() if p.grad is not None])
            output = EnsembleOutput(logits)
        else:
            output = self.ensemble(batch.x)
            outcome = self.objective(output, batch.target, state)
            backward(outcome.loss)
            loss, weights = outcome.loss.detach(), outcome.weights
        by_loss = wanted(self.objective, output, batch.target, state, weights)
        return Stepped(loss * amount * (batch.total / whole), weights, by_loss)

    def _whole(self, batch: Batch) -> int | Tensor:
        """What the parts of a step, over all processes, sum up to."""
        if self.task.ignore_index is None:
            return batch.total
        return total(torch.as_tensor(self._amount(batch), device=batch.x.device)).clamp_min(1e-9)

    def _amount(self, batch: Batch) -> int | Tensor:
        """How many examples a batch counts for: as many as it has, or their weight in units of the mean.

        Where labels are ignored, only examples, or pixels where those are the unit, that have a label.
        """
        weight = batch.weight
        if (counted := self.task.counted(batch.target.flatten() if self.by_pixel else batch.target)) is not None:
            often = 1.0 if weight is None else weight.repeat_interleave(len(counted) // len(batch.x))
            weight = counted * often
        return len(batch.x) if weight is None else weight.sum() / self.mean_weight

    def _synchronised(self, last: bool) -> AbstractContextManager:
        """Processes exchange their gradients once per step, after its last part."""
        if last or self.fabric.world_size == 1:
            return nullcontext()
        return cast("Fabric", self.fabric).no_backward_sync(self.ensemble)


def parts(batch: Batch, count: int, world: int = 1) -> Iterator[tuple[Batch, bool]]:
    """A batch in up to `count` parts of at least two examples each, and whether a part is the last one.

    All of `world` processes make equally many, since each part is one exchange between them.
    """
    count = max(min(count, batch.total // world // 2), 1)
    if count == 1:
        yield batch, True
        return
    for number, at in enumerate(torch.arange(len(batch.x), device=batch.x.device).tensor_split(count), start=1):
        group, weight = (None if part is None else part[at] for part in (batch.group, batch.weight))
        part = Batch(batch.x[at], batch.target[at], batch.index[at], group, batch.total, weight)
        yield part, number == count

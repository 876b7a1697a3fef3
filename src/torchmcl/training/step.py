"""One training step: `forward` computes the loss, and `Step` also updates the weights."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmcl._utils.distributed import all_mean, all_sum, single_process
from torchmcl.data.loader import Batch
from torchmcl.ensemble import Ensemble
from torchmcl.objectives.objective import PerPixel, memory_of, task_of
from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.state import State
from torchmcl.structures.task import Task
from torchmcl.training.member_parallel import MemberParallel
from torchmcl.training.memberwise import memberwise_backward
from torchmcl.training.sample_others import Sample, SampleOthers

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from torchmcl.training.device import OneDevice


class Forward(NamedTuple):
    """The outcome of the objective for a batch, and the members' outputs."""

    outcome: Outcome
    output: EnsembleOutput


def forward(ensemble: Callable[[Tensor], EnsembleOutput], objective: nn.Module, batch: Batch, state: State) -> Forward:
    """Compute the loss of a batch, with gradients enabled, for use in your own training loop.

    Args:
        ensemble: The ensemble.
        objective: The objective of the method. See `Method.new_objective`.
        batch: The inputs (B, …) and targets (B, …).
        state: The epoch and the number of epochs.

    Returns:
        The outcome, with a `loss` that supports `backward`, and the members' outputs (M, B, C, …).

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
    """Return the state with the group, index and weight of each example in the batch."""
    return replace(state, group=group_of(batch, task), index=batch.index, sample_weight=batch.weight)


def group_of(batch: Batch, task: Task) -> Tensor | None:
    """Return the groups (B,) in which a memory counts the examples: `batch.group`, or the task's groups by default."""
    return task.group(batch.target) if batch.group is None else batch.group


class StepResult(NamedTuple):
    """The result of a step for this process's part of a batch.

    `loss` is the mean loss times the number of examples. If examples have weights, the sum of these
    weights divided by `Step.mean_weight` replaces this number. `weights` (M, B) are the objective's weights, and
    `wanted` (M, B) are the weights that loss-based assignment would give.
    """

    loss: Tensor
    weights: Tensor
    wanted: Tensor


@final
class Step:
    """An optimiser step: forward and backward pass of a batch, gradient clipping and update of the weights.

    Args:
        fabric: Synchronises gradients between processes and scales them for mixed precision.
        unwrapped: The ensemble before it is set up by `fabric`.
        ensemble: The same ensemble, set up by `fabric` and possibly compiled.
        objective: The objective, which computes the loss.
        optimizer: The optimiser, set up by `fabric`.
        accumulate: The number of parts into which a batch is split.
        clip: The maximum norm of the gradient, or None for no clipping.
        lean: Whether to store the activations of only one member at a time.
        mean_weight: The mean weight of all training examples. A batch with a lower mean weight has a smaller gradient.
        others: The sample of the examples that a member leaves, or None if members see all examples. The sample is
            drawn whenever the assignment is known before the forward pass.
        parallel: The division of the members among processes that have the same batches, or None if each process
            trains all members on its part of a batch.

    >>> from torchmcl import methods
    >>> from torchmcl.training.device import OneDevice
    >>> method = methods.build("ie", members=2, classes=3)
    >>> ensemble = Ensemble.build(method, "mlp", inputs=4, width=8)
    >>> optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    >>> step = Step(OneDevice("cpu"), ensemble, ensemble, method.new_objective(), optimizer)
    >>> batch = Batch(torch.ones(3, 4), torch.tensor([0, 1, 2]), torch.arange(3), None, total=3)
    >>> step(batch, State(epoch=1, epochs=10)).weights.shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        fabric: "Fabric | OneDevice",
        unwrapped: Ensemble,
        ensemble: Any,
        objective: nn.Module,
        optimizer: Optimizer,
        *,
        accumulate: int = 1,
        clip: float | None = None,
        lean: bool = False,
        mean_weight: float = 1.0,
        others: SampleOthers | None = None,
        parallel: MemberParallel | None = None,
    ) -> None:
        self.fabric, self.unwrapped, self.ensemble = fabric, unwrapped, ensemble
        self.objective, self.optimizer = objective, optimizer
        self.accumulate, self.clip, self.lean, self.mean_weight = accumulate, clip, lean, mean_weight
        self.others, self.parallel = others, parallel
        self.world = fabric.world_size if parallel is None else 1  # the number of parts of a batch
        self.task, self.by_pixel = task_of(objective), isinstance(objective, PerPixel)

    def __call__(self, batch: Batch, state: State, uniform: Tensor | None = None) -> StepResult:
        """Update the weights with a batch.

        `state` contains the epoch and the number of epochs. `uniform` (M, B) are the random numbers for `others`.
        """
        with nullcontext() if self.parallel is None else single_process():  # with complete batches, sums are complete
            return self._step(batch, state, uniform)

    def _step(self, batch: Batch, state: State, uniform: Tensor | None) -> StepResult:
        self.optimizer.zero_grad()
        results, step_total = [], self._total(batch)
        for part, drawn, last in self._parts(batch, uniform):
            with self._synchronised(last):
                results.append(self._backward(part, state, step_total, drawn))
        if self.clip:
            # No error is needed here: the loss reveals divergence, and a gradient scaler skips steps that overflow.
            self.fabric.clip_gradients(
                self.ensemble, cast(Any, self.optimizer), max_norm=self.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        if len(results) == 1:
            return results[0]
        losses, weights, wanted = zip(*results, strict=True)
        return StepResult(sum(losses[1:], losses[0]), torch.cat(weights, 1), torch.cat(wanted, 1))

    @torch.no_grad()
    def needed(self, batch: Batch, state: State, uniform: Tensor | None = None) -> Tensor | None:
        """Return which examples of a batch without inputs a step computes in this process, bool (B,), or None for all.

        See `__call__` for the arguments. Call this function in the order of the steps.
        """
        if self.parallel is None:
            return None
        seen = []
        for part, drawn, _ in self._parts(batch, uniform):
            chosen = torch.zeros(len(part.x), dtype=torch.bool, device=part.x.device)
            with torch.enable_grad(), single_process():  # so that a memory is fixed as in a step
                sample = self._sample(part, state_of(part, state, self.task), drawn)
            for rows in (None,) if sample is None else sample.parts:
                if rows is None:
                    return None
                chosen[rows] = True
            seen.append(chosen)
        return torch.cat(seen)

    def _parts(self, batch: Batch, uniform: Tensor | None) -> Iterator[tuple[Batch, Tensor | None, bool]]:
        """Yield each part of a batch, with its random numbers, and whether it is the last."""
        start = 0
        for part, last in parts(batch, self.accumulate, self.world):
            yield part, None if uniform is None else uniform[:, start : start + len(part.x)], last
            start += len(part.x)

    def _backward(
        self, batch: Batch, state: State, step_total: int | Tensor, uniform: Tensor | None = None
    ) -> StepResult:
        """Run the forward and backward pass for one part of a step with `step_total` effective examples."""
        state, amount = state_of(batch, state, self.task), self._amount(batch)
        sample = self._sample(batch, state, uniform)

        def backward(loss: Tensor) -> None:
            # Gradients are averaged over processes, so the loss is scaled by the amount of data in this process.
            self.fabric.backward(loss * (amount * self.world / step_total))

        if self.lean:
            x, target, autocast = batch.x, batch.target, self.fabric.autocast
            loss, weights, logits = memberwise_backward(
                self.unwrapped, self.objective, x, target, state, backward=backward, autocast=autocast, sample=sample
            )
            all_mean([p.grad for p in self.unwrapped.parameters() if p.grad is not None])
            output = EnsembleOutput(logits)
        else:
            if sample is None and self.parallel is not None:
                output = self.ensemble(batch.x, self.parallel.own_parts())
                output = output._replace(logits=self.parallel.gather(output.logits))
            elif sample is None:
                output = self.ensemble(batch.x)
            else:
                output, state = self.ensemble(batch.x, sample.parts), replace(state, member_weight=sample.weight)
                output = output._replace(logits=sample.corrected(output.logits))
            outcome = self.objective(output, batch.target, state)
            backward(outcome.loss)
            loss, weights = outcome.loss.detach(), outcome.weights
            if sample is None and self.parallel is not None:
                loss = loss * (self.parallel.rank == 0)  # the loss of all members, which every process has computed
        # Loss-based weights need the outputs of all members.
        wanted = weights if sample is not None else self._wanted(output, batch.target, state, weights)
        return StepResult(loss * amount * (batch.total / step_total), weights, wanted)

    def _sample(self, batch: Batch, state: State, uniform: Tensor | None) -> Sample | None:
        """Return the examples that each member sees, or None if the assignment is not known yet or all are seen."""
        others = self.others if uniform is not None else None
        if others is None and self.parallel is None:
            return None
        precompute = getattr(self.objective, "precomputed_weights", None)
        taken = None if precompute is None else precompute(len(self.unwrapped.bodies), batch.target, state)
        if taken is None:
            return None
        sample = Sample.complete(taken) if others is None else others(taken, cast(Tensor, uniform))
        return sample if self.parallel is None else self.parallel.of_own(sample)

    def _wanted(self, output: EnsembleOutput, target: Tensor, state: State, weights: Tensor) -> Tensor:
        """Return the weights (M, B) of loss-based assignment, or `weights` (M, B) if no memory assigns the examples.

        `weights` is also returned for masks, because loss-based weights are as expensive to compute as the loss.
        """
        memory, by_loss = memory_of(self.objective), getattr(self.objective, "chosen_by_loss", None)
        if memory is None or not memory.fixed or by_loss is None or output.logits.ndim > 3:
            return weights
        return cast(Tensor, by_loss(output, target, state))

    def _total(self, batch: Batch) -> int | Tensor:
        """Return the effective number of examples in a step, summed over all parts and processes."""
        if self.task.ignore_index is None:
            return batch.total
        return all_sum(torch.as_tensor(self._amount(batch), device=batch.x.device)).clamp_min(1e-9)

    def _amount(self, batch: Batch) -> int | Tensor:
        """Return the number of examples in a batch, or the sum of their weights divided by the mean weight.

        Examples (or pixels, if the unit is the pixel) with an ignored label are excluded.
        """
        weight = batch.weight
        if (counted := self.task.counted(batch.target.flatten() if self.by_pixel else batch.target)) is not None:
            repeated = 1.0 if weight is None else weight.repeat_interleave(len(counted) // len(batch.x))
            weight = counted * repeated
        return len(batch.x) if weight is None else weight.sum() / self.mean_weight

    def _synchronised(self, last: bool) -> AbstractContextManager:
        """Return a context in which processes synchronise gradients only after the last part of a step."""
        if last or self.world == 1:
            return nullcontext()
        return cast("Fabric", self.fabric).no_backward_sync(self.ensemble)


def parts(batch: Batch, count: int, world: int = 1) -> Iterator[tuple[Batch, bool]]:
    """Split a batch into up to `count` parts of at least two examples, and yield each part and whether it is the last.

    All of the `world` processes yield the same number of parts, because they communicate once per part.
    """
    count = max(min(count, batch.total // world // 2), 1)
    if count == 1:
        yield batch, True
        return
    for number, at in enumerate(torch.arange(len(batch.x), device=batch.x.device).tensor_split(count), start=1):
        group, weight = (None if part is None else part[at] for part in (batch.group, batch.weight))
        part = Batch(batch.x[at], batch.target[at], batch.index[at], group, batch.total, weight)
        yield part, number == count

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchmcl._utils.durations import Duration, check_duration, epochs_of
from torchmcl.assignment import Assignment
from torchmcl.assignment.memory import Memory
from torchmcl.errors import UsageError
from torchmcl.objectives.costs import is_memberwise, nothing
from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput, describe
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, Joint, Task
from torchmcl.tasks import LABELS, with_loss

__all__ = ["Objective", "PerPixel", "Phases", "memory_of", "phase_of", "schedule_end", "task_of"]


class _WithMemory(nn.Module):
    @property
    def memory(self) -> Memory | None:
        """The memory of the objective, or None if it has none."""
        return memory_of(self)


class Objective(_WithMemory):
    """The loss of an ensemble: each member takes or leaves each example, and each choice has a cost.

    The loss is L = mean_B sum_m [ w_m take_m + (1 - w_m) leave_m ] + joint costs, the common form of eq. 1 to 6 of Kim
    et al. 2022. It is a sum over members, so that the learning rate does not depend on M, and a mean over examples,
    weighted by `state.sample_weight`. `assign` computes the weights w from the regret, take - leave. With `TopK`, L is
    the minimum over all choices of k members. The weights carry no gradient. If an example has several targets, each
    target is assigned, and the mean over the example's targets replaces its cost.

    Args:
        take: The cost of taking an example: either a task, whose loss is used, or a cost for class labels.
        leave: The cost of leaving an example.
        assign: The assignment, (regret (M, B), state) -> weights (M, B).
        joint: Costs of the ensemble as a whole, in addition to those of the task.
        rank: The leave cost that is used to compute the regret; by default, `leave`.

    >>> from torchmcl.objectives import costs
    >>> from torchmcl import assignment
    >>> stochastic_mcl = Objective(costs.cross_entropy, costs.nothing, assignment.TopK(1))
    >>> outcome = stochastic_mcl(torch.tensor([[[9.0, 0.0]], [[0.0, 9.0]]]), torch.tensor([1]))
    >>> outcome.weights.squeeze()
    tensor([0., 1.])
    """

    def __init__(
        self,
        take: Cost | Task,
        leave: Cost,
        assign: Assignment,
        *,
        joint: Sequence[Joint] = (),
        rank: Cost | None = None,
    ) -> None:
        super().__init__()
        self.task, self.take = with_loss(take)
        self.leave = leave
        self.assign = assign
        self.joint = (*joint, *self.task.joint)
        self.rank = rank

    def extra_repr(self) -> str:
        """Return the parts that are plain functions; modules are printed by PyTorch."""
        parts = {name: getattr(self, name) for name in ("take", "leave", "assign", "rank", "joint")}
        plain = {name: part for name, part in parts.items() if part and not isinstance(part, nn.Module)}
        return ", ".join(f"{name}={getattr(part, '__name__', part)}" for name, part in plain.items())

    def forward(self, output: EnsembleOutput | Tensor, target: Tensor, state: State | None = None) -> Outcome:
        """Compute the loss of a batch.

        Args:
            output: An EnsembleOutput or logits (M, B, C, …).
            target: (B, …), checked by the task.
            state: The state of training; required by objectives that change over training.

        Raises:
            UsageError: If shapes do not match, or the state lacks a value that the objective needs.
        """
        state = state or State()
        # `recording` depends on whether gradients are enabled, and the assignment below runs without them.
        output = EnsembleOutput.of(output)
        target, state = self.task.prepare(output.logits, target, replace(state, record=state.recording(self)))
        with torch.autocast(output.logits.device.type, enabled=False):
            take = self._take_cost(output.logits, target, state)
            state.shared["take"] = regret = take.detach()  # for joint costs
            leave = _like(take, self.leave(output.logits, target, state))
            with torch.no_grad():
                if self.rank is not None:
                    regret = regret - _like(take, self.rank(output.logits, target, state))
                elif self.leave is not nothing:
                    regret = regret - leave.detach()
                weights = self.assign(regret, state)
            each = weights * take
            if self.leave is not nothing:
                each = each + (1 - weights) * leave
            if state.member_weight is not None:
                each = each * _like(each, state.member_weight.to(each.dtype))
            loss = state.mean(each.sum(0))
            for cost in self.joint:
                loss = loss + cost(output, target, weights, state)
        return Outcome(loss, *map(state.by_example, (weights, take, leave)))

    def _take_cost(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        take = self.take(outputs, target, state)
        shape = self.task.loss_shape(outputs, target)
        if not isinstance(take, Tensor) or take.shape != shape or not take.is_floating_point():
            axes = "(M, B)" if len(shape) == 2 else "(M, B, T)"
            raise UsageError(
                f"Expected a floating point loss {axes} = {shape} from {self.task.name}, got {describe(take)}. "
                "Average the loss over the other axes."
            )
        return take

    @property
    def assigns_in_advance(self) -> bool:
        """Whether the weights are known before the forward pass, and members do not depend on each other."""
        separable = not self.joint and is_memberwise(self.take) and is_memberwise(self.leave)
        return separable and getattr(self.assign, "loss_independent", False)

    def precomputed_weights(self, members: int, target: Tensor, state: State) -> Tensor | None:
        """Return the weights (M, B), or None if they are not known in advance; see `assigns_in_advance`."""
        if not self.assigns_in_advance:
            return None
        return self.assign(torch.zeros(members, len(target), device=target.device), state)

    def member_loss(self, logits: Tensor, weights: Tensor, target: Tensor, state: State) -> Tensor:
        """Return one member's part of the loss, a scalar, for its logits (B, C, …) and precomputed weights (B,).

        `state.member_weight`, if given, has the shape (1, B).
        """
        output = EnsembleOutput.of(logits[None])
        target, state = self.task.prepare(output.logits, target, state)
        with torch.autocast(logits.device.type, enabled=False):
            take = self._take_cost(output.logits, target, state)[0]
            each = weights * take + (1 - weights) * self.leave(output.logits, target, state)[0]
            return state.mean(each if state.member_weight is None else each * state.member_weight[0].to(each.dtype))


def _like(take: Tensor, cost: Tensor) -> Tensor:
    """Expand a cost (M, B) to the shape of the take cost, (M, B) or (M, B, T)."""
    return cost if cost.ndim == take.ndim else cost.unsqueeze(2).expand_as(take)


class Phases(_WithMemory):
    """One objective for the first phase of training and another one afterwards (Kim et al. 2022, eq. 4).

    Training never returns to the first phase, even if a later training loop counts epochs from 1 again.

    Args:
        first: The objective of the first phase.
        then: The objective of the second phase.
        after: The duration of the first phase, in epochs or as a share of the schedule, or "stable"; see `settled`.
        names: The names of the phases.
        option: The name of the duration in error messages.
        settled: A function of the state that returns whether the first phase ends before this batch, for
            `after="stable"`. It is called only if the state allows recording. The phase ends after half of the
            schedule at the latest.

    >>> from torchmcl import methods
    >>> amcl = methods.build("amcl", members=2, classes=3, warmup=1).new_objective()
    >>> logits, target = torch.randn(2, 8, 4), torch.randint(3, (8,))
    >>> [amcl(logits, target, State(epoch, epochs=2)) and amcl.phase for epoch in (1, 2)]
    [0, 1]
    """

    def __init__(
        self,
        first: nn.Module,
        then: nn.Module,
        *,
        after: Duration,
        names: tuple[str, str] = ("first", "then"),
        option: str = "after",
        settled: Callable[[State], bool] | None = None,
    ) -> None:
        super().__init__()
        check_duration(after, option, least=0, stable=settled is not None)
        self.names = names
        self.option = option
        self.first = first
        self.then = then
        self.after = after
        self.settled = settled
        self.phase = 0

    def forward(self, output: EnsembleOutput | Tensor, target: Tensor, state: State | None = None) -> Outcome:
        """Compute the loss of the current phase; see `Objective.forward`."""
        state = state or State()
        outcome: Outcome = self._current(state)(output, target, replace(state, record=state.recording(self)))
        return outcome

    @property
    def assigns_in_advance(self) -> bool:
        """Whether the weights of one of the phases are known before the forward pass."""
        return any(getattr(phase, "assigns_in_advance", False) for phase in (self.first, self.then))

    def precomputed_weights(self, members: int, target: Tensor, state: State) -> Tensor | None:
        """See `Objective.precomputed_weights`."""
        return self._current(state).precomputed_weights(members, target, state)

    def member_loss(self, logits: Tensor, weights: Tensor, target: Tensor, state: State) -> Tensor:
        """See `Objective.member_loss`."""
        return self._current(state).member_loss(logits, weights, target, state)

    def schedule_end(self, epochs: int, members: int) -> int:
        """Return the number of epochs of the first phase."""
        return epochs_of(self.after, epochs, self.option)

    @torch.no_grad()
    def chosen_by_loss(self, output: EnsembleOutput | Tensor, target: Tensor, state: State) -> Tensor:
        """Return the loss-based assignment (M, B) of eq. 5 in any phase without recording it (Kim et al. 2022, C.1)."""
        outcome: Outcome = self.first(output, target, replace(state, record=False))
        return outcome.weights

    def _current(self, state: State) -> Objective:
        phase = max(self.phase, int(state.at_epoch() > state.epochs_in(self.after, self.option)))
        if state.recording(self):
            if not phase and self.settled is not None:
                phase = int(self.settled(state))
            self.phase = phase
        return cast(Objective, self.then if phase else self.first)

    def get_extra_state(self) -> Tensor:
        """Return the phase, which is not a buffer because reading a buffer would synchronise the device."""
        return torch.tensor(self.phase)

    def set_extra_state(self, state: Any) -> None:
        """Restore the phase."""
        self.phase = int(state)


class PerPixel(_WithMemory):
    """Apply an objective with pixels as examples: members take or leave pixels, and a memory counts pixels per class.

    >>> from torchmcl import methods
    >>> objective = PerPixel(methods.build("smcl", members=2, classes=3).new_objective())
    >>> objective(torch.randn(2, 4, 3, 5, 5), torch.randint(3, (4, 5, 5))).weights.shape
    torch.Size([2, 100])
    """

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, output: EnsembleOutput | Tensor, target: Tensor, state: State | None = None) -> Outcome:
        """Compute the loss (see `Objective.forward`); weights and costs have the shape (M, B * pixels)."""
        state = state or State()
        output = EnsembleOutput.of(output)
        target = task_of(self).check(output.logits, target)
        state = replace(state, record=state.recording(self))
        logits = output.logits.flatten(3).transpose(2, 3).flatten(1, 2) if output.logits.ndim > 3 else output.logits
        pixels = logits.shape[1] // output.logits.shape[1]
        gate = None if output.gate is None else output.gate.repeat_interleave(pixels, dim=1)
        weight = None if state.sample_weight is None else state.sample_weight.repeat_interleave(pixels)
        soft = target.is_floating_point() and target.ndim > 2
        target = target.flatten(2).transpose(1, 2).flatten(0, 1) if soft else target.flatten()
        state = replace(state, group=None, index=None, sample_weight=weight)
        outcome: Outcome = self.objective(EnsembleOutput(logits, gate), target, state)
        return outcome


def task_of(objective: nn.Module) -> Task:
    """Return the task of an objective, or `LABELS` if it has none."""
    return next((part.task for part in objective.modules() if isinstance(part, Objective)), LABELS)


def memory_of(objective: nn.Module) -> Memory | None:
    """Return the memory of an objective, or None if it has none."""
    return next((part for part in objective.modules() if isinstance(part, Memory)), None)


def phase_of(objective: nn.Module) -> str:
    """Return the name of an objective's current phase, or an empty string if it has no phases."""
    phases = next((part for part in objective.modules() if isinstance(part, Phases)), None)
    return phases.names[phases.phase] if phases is not None else ""


def schedule_end(objective: nn.Module, epochs: int, members: int) -> int:
    """Return the number of epochs after which an objective no longer changes: the end of warm-up, ramp and annealing.

    An assignment, cost or joint cost that changes over training has a method `schedule_end(epochs, members)`.

    >>> from torchmcl import methods
    >>> [schedule_end(methods.build(name).new_objective(), 100, 5) for name in ("smcl", "amcl", "annealed")]
    [0, 5, 80]
    """
    modules = list(objective.modules())
    plain = [part for module in modules for part in (getattr(module, "assign", None), *getattr(module, "joint", ()))]
    ends = (getattr(part, "schedule_end", None) for part in (*modules, *plain))
    return max((end(epochs, members) for end in ends if end is not None), default=0)

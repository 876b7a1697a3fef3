from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.durations import Duration, check_duration, epochs_of
from torchmcl.assignment import Assignment
from torchmcl.assignment.memory import Memory
from torchmcl.errors import UsageError
from torchmcl.objectives.costs import is_memberwise
from torchmcl.objectives.joint_costs import Joint
from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput, describe
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, Task
from torchmcl.tasks import LABELS, with_loss

__all__ = ["Objective", "PerPixel", "Phases", "memory_of", "phase_of", "schedule_end", "task_of"]


class Objective(nn.Module):
    """The one equation of the family: each member takes an example or leaves it, and both have a cost.

    L = mean_B sum_m [ w_m take_m + (1 - w_m) leave_m ] + joint costs, summed over members so that the learning rate
    does not depend on M; the mean is weighted by `state.sample_weight`, where there is one. The weights w come from
    `assign`, given each member's regret = take - leave: for the k least, L is the minimum over all choices of k members
    (eq. 3 and 5 of Kim et al. 2022). The choice carries no gradient.

    `take` is a task, whose loss it is, or a cost of labels; `leave` is a cost, `assign` an assignment, `joint` any
    number of costs of the ensemble as a whole; `rank` is the cost to leave in the regret, `leave` unless given.

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
        self.joint = tuple(joint)
        self.rank = rank

    def extra_repr(self) -> str:
        """The parts that are plain functions; modules print themselves."""
        parts = {name: getattr(self, name) for name in ("take", "leave", "assign", "rank", "joint")}
        plain = {name: part for name, part in parts.items() if part and not isinstance(part, nn.Module)}
        return ", ".join(f"{name}={getattr(part, '__name__', part)}" for name, part in plain.items())

    def forward(self, output: EnsembleOutput | Tensor, target: Tensor, state: State | None = None) -> Outcome:
        """EnsembleOutput or logits (M, B, C, …), target (B, …) -> outcome."""
        state = state or State()
        # Decided here: the assignment below runs without gradients.
        output = EnsembleOutput.of(output)
        target, state = self.task.prepare(output.logits, target, replace(state, record=state.recording(self)))
        with torch.autocast(output.logits.device.type, enabled=False):
            take = self._taking(output.logits, target, state)
            leave = self.leave(output.logits, target, state)
            with torch.no_grad():
                rank = leave if self.rank is None else self.rank(output.logits, target, state)
                weights = self.assign(take.detach() - rank.detach(), state)
            loss = state.mean((weights * take + (1 - weights) * leave).sum(0))
            for cost in self.joint:
                loss = loss + cost(output, target, weights, state)
        return Outcome(loss, weights, take, leave)

    def _taking(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        take = self.take(outputs, target, state)
        if not isinstance(take, Tensor) or take.shape != outputs.shape[:2]:
            raise UsageError(
                f"Expected the loss of {self.task.name} to be one number per member and example, "
                f"(M, B) = {tuple(outputs.shape[:2])}, got {describe(take)}. Average over what is left of the outputs."
            )
        return take

    @property
    def memory(self) -> Memory | None:
        """The memory that it counts in, if it has one."""
        return memory_of(self)

    def precomputed_weights(self, members: int, target: Tensor, state: State) -> Tensor | None:
        """The weights (M, B), where they are known before anyone has answered and couple no member to another."""
        separable = not self.joint and is_memberwise(self.take) and is_memberwise(self.leave)
        if not separable or not getattr(self.assign, "loss_independent", False):
            return None
        return self.assign(torch.zeros(members, len(target), device=target.device), state)

    def member_loss(self, logits: Tensor, weights: Tensor, target: Tensor, state: State) -> Tensor:
        """One member's part of the loss: its logits (B, C, …) and its weights (B,), known ahead -> scalar."""
        output = EnsembleOutput.of(logits[None])
        target, state = self.task.prepare(output.logits, target, state)
        with torch.autocast(logits.device.type, enabled=False):
            take = self._taking(output.logits, target, state)[0]
            return state.mean(weights * take + (1 - weights) * self.leave(output.logits, target, state)[0])


class Phases(nn.Module):
    """One objective for the epochs of a duration, another from then on: eq. 4 of Kim et al. 2022.

    A phase once left does not come back, whatever epoch a later loop counts. `after` is a number of epochs or a share
    of the schedule; `option` is its name in error messages.

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
    ) -> None:
        super().__init__()
        check_duration(after, option, least=0)
        self.names = names
        self.option = option
        self.first = first
        self.then = then
        self.after = after
        self.phase = 0

    def forward(self, output: EnsembleOutput | Tensor, target: Tensor, state: State | None = None) -> Outcome:
        """EnsembleOutput or logits (M, B, C, …), target (B, …) -> outcome of the phase."""
        state = state or State()
        outcome: Outcome = self._now(state)(output, target, replace(state, record=state.recording(self)))
        return outcome

    @property
    def memory(self) -> Memory | None:
        """The memory that it counts in, if it has one."""
        return memory_of(self)

    def precomputed_weights(self, members: int, target: Tensor, state: State) -> Tensor | None:
        """See `Objective.precomputed_weights`."""
        weights: Tensor | None = self._now(state).precomputed_weights(members, target, state)
        return weights

    def member_loss(self, logits: Tensor, weights: Tensor, target: Tensor, state: State) -> Tensor:
        """See `Objective.member_loss`."""
        loss: Tensor = self._now(state).member_loss(logits, weights, target, state)
        return loss

    def schedule_end(self, epochs: int, members: int) -> int:
        """The epochs of the first phase."""
        return epochs_of(self.after, epochs, self.option)

    @torch.no_grad()
    def chosen_by_loss(self, output: EnsembleOutput | Tensor, target: Tensor, state: State) -> Tensor:
        """Which members would take each example by loss, (M, B), whatever a memory decides.

        This is v of eq. 5, Kim et al. 2022, appendix C.1. Nothing is counted.
        """
        outcome: Outcome = self.first(output, target, replace(state, record=False))
        return outcome.weights

    def _now(self, state: State) -> Any:
        phase = max(self.phase, int(state.at_epoch() > state.epochs_in(self.after, self.option)))
        if state.recording(self):
            self.phase = phase
        return self.then if phase else self.first

    def get_extra_state(self) -> Tensor:
        """The phase; not a buffer, so that reading it never waits for the device."""
        return torch.tensor(self.phase)

    def set_extra_state(self, state: Any) -> None:
        """Load it back."""
        self.phase = int(state)


class PerPixel(nn.Module):
    """Another objective with every pixel an example of its own: members choose pixels, a memory counts their classes.

    By default an image is taken or left as a whole, its cost the mean over its pixels.

    >>> from torchmcl import methods
    >>> objective = PerPixel(methods.build("smcl", members=2, classes=3).new_objective())
    >>> objective(torch.randn(2, 4, 3, 5, 5), torch.randint(3, (4, 5, 5))).weights.shape
    torch.Size([2, 100])
    """

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, output: EnsembleOutput | Tensor, target: Tensor, state: State | None = None) -> Outcome:
        """EnsembleOutput or logits (M, B, C, …), target (B, …) -> outcome with weights (M, B * pixels)."""
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

    @property
    def memory(self) -> Memory | None:
        """The memory that it counts in, if it has one."""
        return memory_of(self)


def task_of(objective: nn.Module) -> Task:
    """The task of an objective; labels where it does not say."""
    return next((part.task for part in objective.modules() if isinstance(part, Objective)), LABELS)


def memory_of(objective: nn.Module) -> Memory | None:
    """The memory in an objective, or None."""
    return next((part for part in objective.modules() if isinstance(part, Memory)), None)


def phase_of(objective: nn.Module) -> str:
    """The name of the phase that an objective is in; empty where it has no phases."""
    phases = next((part for part in objective.modules() if isinstance(part, Phases)), None)
    return phases.names[phases.phase] if phases is not None else ""


def schedule_end(objective: nn.Module, epochs: int, members: int) -> int:
    """The epochs after which an objective has its final form: past warm-up, ramp and annealing; 0 if it never changes.

    An assignment, cost or joint cost that changes over training has a method `schedule_end(epochs, members)`.

    >>> from torchmcl import methods
    >>> [schedule_end(methods.build(name).new_objective(), 100, 5) for name in ("smcl", "amcl", "annealed")]
    [0, 5, 80]
    """
    modules = list(objective.modules())
    plain = [part for module in modules for part in (getattr(module, "assign", None), *getattr(module, "joint", ()))]
    found = (getattr(part, "schedule_end", None) for part in (*modules, *plain))
    return max((settles(epochs, members) for settles in found if settles is not None), default=0)

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from torchmcl._utils.frozen import FrozenDict
from torchmcl._utils.validation import plain_number
from torchmcl.assignment import top_k
from torchmcl.assignment.memory import Memory
from torchmcl.errors import UsageError, known_name
from torchmcl.objectives.objective import PerPixel, schedule_end
from torchmcl.structures.task import Task
from torchmcl.tasks import as_task
from torchmcl.tasks.combiners import Combiner


@dataclass(frozen=True, eq=False)
class Composition:
    """The parts of a method.

    Args:
        objective: A new module without training state.
        k: The number of members that take each example once the objective no longer changes.
        auxiliary: Whether networks have an auxiliary class as an additional output.
        combine: The function that combines the members' outputs; by default, the task's combiner.
        exchange: The default exchange between members.
        cut: Where networks are split for the exchange: "exchange" or "last_stage".
        gate: The kind of gate, or None for no gate.
        teaches_leaving: Whether members learn to recognise the examples that they should leave.
        published: The number of epochs in the paper for each duration; determines the default on the paper's data sets.
    """

    objective: nn.Module
    k: int
    auxiliary: bool = False
    combine: Combiner | None = None
    exchange: str = "none"
    cut: str = "exchange"
    gate: str | None = None
    teaches_leaving: bool = False
    published: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """An immutable description of a method for training an ensemble and combining its members.

    Methods with the same arguments are equal. Each call to `new_objective` returns a new module, which belongs to one
    run and has its own memory and phase.

    Args:
        compose: A function (members, task, *, k=1, …) -> Composition.
        members: The number of members M.
        task: The task; an integer is the number of classes of a `Classification`.
        options: The options of `compose`; missing ones get their defaults.
        unit: The unit that members take or leave in segmentation, "image" or "pixel".

    >>> from torchmcl.methods import build
    >>> method = build("amcl", members=3, classes=10, warmup=1)
    >>> method == build("amcl", members=3, classes=10, warmup=1), method.new_objective() is method.new_objective()
    (True, False)
    """

    compose: Callable[..., Composition]
    members: int
    task: Task
    options: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "image"

    def __post_init__(self) -> None:
        if not callable(self.compose):
            raise UsageError(
                "Expected a function (members, task, *, k=1, …) -> Composition for compose, "
                f"got {type(self.compose).__name__}."
            )
        known_name("unit", self.unit, ("image", "pixel"))
        parameters = inspect.signature(self.compose).parameters
        open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if unknown := [] if open_ended else sorted(set(self.options) - set(parameters)):
            raise UsageError(f"{self.name} has no option {', '.join(unknown)}. Available: {', '.join(parameters)}.")
        defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
        options = {name: plain_number(value) for name, value in {**defaults, **self.options}.items()}
        object.__setattr__(self, "members", plain_number(self.members))
        object.__setattr__(self, "task", as_task(self.task))
        object.__setattr__(self, "options", FrozenDict(options))
        if "k" in options and options["k"] is None:  # CMCL's default depends on the number of members
            object.__setattr__(self, "options", FrozenDict({**options, "k": self.k}))

    def new_objective(self) -> nn.Module:
        """Return a new objective without training state."""
        objective = self._composed().objective
        return PerPixel(objective) if self.unit == "pixel" else objective

    def _composed(self) -> Composition:
        composed = self.compose(self.members, self.task, **self.options)
        if not isinstance(composed, Composition):
            raise UsageError(f"Expected {self.name} to return a Composition, got {type(composed).__name__}.")
        return composed

    @cached_property
    def composition(self) -> Composition:
        """The parts of the method, with a placeholder for the objective; see `new_objective`."""
        return replace(self._composed(), objective=nn.Identity())

    @property
    def name(self) -> str:
        """The name of the function `compose`."""
        return getattr(self.compose, "__name__", "own")

    @property
    def k(self) -> int:
        """The number of members that take each example; M in an independent ensemble."""
        return self.composition.k

    @property
    def classes(self) -> int:
        """The number of classes without the auxiliary class, or 0 if the task has no classes."""
        return self.task.classes or 0

    @property
    def auxiliary(self) -> bool:
        """Whether the last output of each network is the auxiliary class."""
        return self.composition.auxiliary

    @property
    def outputs(self) -> int:
        """The number of outputs of each network: the task's outputs, plus the auxiliary class if there is one."""
        return self.task.outputs + self.auxiliary

    @property
    def combine(self) -> Combiner:
        """The function that combines the members' outputs (M, B, C, …) into the ensemble's prediction (B, C, …)."""
        return self.composition.combine or self.task.combine

    @property
    def exchange(self) -> str:
        """The default exchange between members."""
        return self.composition.exchange

    def schedule_end(self, epochs: int) -> int:
        """Return the number of epochs after which the objective no longer changes; see `objectives.schedule_end`."""
        return schedule_end(self.new_objective(), epochs, self.members)

    def owners(self, memory: Memory | None, taken: Tensor | None) -> Tensor | None:
        """Return which members own each class, bool (classes, M), or None if the owners are unknown.

        The flags of a fixed memory determine the owners. Otherwise, the owners are the k members that took the most
        examples of each class in `taken` (classes, M). Ties go to the first member. A class that was never taken has no
        owner.

        >>> import torch
        >>> from torchmcl.methods import build
        >>> build("smcl", members=2, classes=3).owners(None, torch.tensor([[9.0, 1.0], [5.0, 5.0], [0.0, 0.0]]))
        tensor([[ True, False],
                [ True, False],
                [False, False]])
        """
        if memory is not None and memory.fixed and (taken is None or memory.flags.shape == taken.shape):
            return memory.flags.cpu()
        return None if taken is None else top_k(taken, self.k, dim=1) & (taken > 0)


F = TypeVar("F", bound=Callable[..., Composition])


def any_task(method: F, *, needs_classes: bool = False, accepts: tuple[type[Task], ...] = ()) -> F:
    """Decorate a method that accepts any task; an integer passed as the task is the number of classes.

    With `needs_classes`, the method raises UsageError for tasks without class probabilities, except for `accepts`.
    """

    @wraps(method)
    def compose(members: int, task: Task | int, **options: Any) -> Composition:
        if (task := as_task(task)).classes is None and needs_classes and not isinstance(task, accepts):
            raise UsageError(
                f"Expected a task with class probabilities for {method.__name__}, got {task.name}. "
                "Use a method that accepts any loss: ie, mcl, smcl, relaxed, evolving or annealed."
            )
        return method(members, task, **options)

    return cast(F, compose)


def class_probabilities(method: F) -> F:
    """Decorate a method that needs class probabilities; the method raises UsageError for tasks without them."""
    return any_task(method, needs_classes=True)

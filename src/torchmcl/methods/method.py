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
    """What a method is made of, returned by its function.

    Args:
        objective: a new module with nothing learned
        k: how many members take each example once the objective has its final form
        auxiliary: whether networks have one output more than classes
        combine: makes one answer of the members' outputs; the task's own unless given
        exchange: what members share unless told otherwise
        cut: where a network is split for the exchange
        gate: the kind of gate, or None
        teaches_leaving: whether members learn to tell which examples are not theirs
        published: the published number of epochs of a duration, out of each data set's published schedule
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
    """A way to train an ensemble and to combine its members: a value that training never changes.

    `compose(members, task, **options)` returns the `Composition`; the same arguments give an equal method, and each
    `new_objective()` is a fresh module that the run owns, with its memory and phase.

    Args:
        compose: a function (members, task, *, k=1, …) -> Composition
        members: M
        task: what is predicted; an integer is the number of classes of a `Classification`
        options: every option of `compose`, defaults included
        unit: what members take or leave in segmentation, an image or a pixel

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
                "Expected a function (members, task, *, k=1, …) -> Composition, which composes a new objective for "
                f"each training, got {type(self.compose).__name__}."
            )
        known_name("unit", self.unit, ("image", "pixel"))
        parameters = inspect.signature(self.compose).parameters
        open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if unknown := [] if open_ended else sorted(set(self.options) - set(parameters)):
            raise UsageError(f"Expected options of {self.name}: {', '.join(parameters)}; got {', '.join(unknown)}.")
        usual = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
        options = {name: plain_number(value) for name, value in {**usual, **self.options}.items()}
        object.__setattr__(self, "members", plain_number(self.members))
        object.__setattr__(self, "task", as_task(self.task))
        object.__setattr__(self, "options", FrozenDict(options))
        if "k" in options and options["k"] is None:  # such as CMCL's, which depends on the number of members
            object.__setattr__(self, "options", FrozenDict({**options, "k": self.k}))

    def new_objective(self) -> nn.Module:
        """A fresh objective, with nothing learned."""
        objective = self._composed().objective
        return PerPixel(objective) if self.unit == "pixel" else objective

    def _composed(self) -> Composition:
        composed = self.compose(self.members, self.task, **self.options)
        if not isinstance(composed, Composition):
            raise UsageError(f"Expected {self.name} to return a Composition, got {type(composed).__name__}.")
        return composed

    @cached_property
    def _composition(self) -> Composition:
        return replace(self._composed(), objective=nn.Identity())

    @property
    def name(self) -> str:
        """The name of its function."""
        return getattr(self.compose, "__name__", "own")

    @property
    def k(self) -> int:
        """How many members take each example; all of them in an independent ensemble."""
        return self._composition.k

    @property
    def classes(self) -> int:
        """The number of classes, without the auxiliary one; 0 where the task has none."""
        return self.task.classes or 0

    @property
    def auxiliary(self) -> bool:
        """Whether networks have an auxiliary class, the last output."""
        return self._composition.auxiliary

    @property
    def outputs(self) -> int:
        """The outputs of each member's network: the task's, and the auxiliary class."""
        return self.task.outputs + self.auxiliary

    @property
    def combine(self) -> Combiner:
        """Makes one answer of the members' outputs."""
        return self._composition.combine or self.task.combine

    @property
    def exchange(self) -> str:
        """What members share unless told otherwise."""
        return self._composition.exchange

    @property
    def cut(self) -> str:
        """Where a network is split for the exchange."""
        return self._composition.cut

    @property
    def gate(self) -> str | None:
        """The kind of gate, or None."""
        return self._composition.gate

    @property
    def teaches_leaving(self) -> bool:
        """Whether members learn to tell which examples are not theirs."""
        return self._composition.teaches_leaving

    @property
    def published(self) -> Mapping[str, int]:
        """The published epochs of its durations, out of each data set's published schedule."""
        return self._composition.published

    def schedule_end(self, epochs: int) -> int:
        """The epochs after which the objective has its final form, see `torchmcl.objectives.objective.schedule_end`."""
        return schedule_end(self.new_objective(), epochs, self.members)

    def owners(self, memory: Memory | None, taken: Tensor | None) -> Tensor | None:
        """Which members own each class, bool (classes, M), or None where that is not known.

        The flags of a memory that is fixed; otherwise the k members that took most of each class, `taken` (classes, M),
        of equals the first. A class that no member took has no owner.

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


def any_task(method: F) -> F:
    """Mark a method that takes any per-example loss; an integer in place of a task is a number of classes."""

    @wraps(method)
    def compose(members: int, task: Task | int, **options: Any) -> Composition:
        return method(members, as_task(task), **options)

    return cast(F, compose)


def class_probabilities(method: F) -> F:
    """Mark a method that needs class probabilities; raises UsageError, with its name, for other tasks."""

    @wraps(method)
    def compose(members: int, task: Task | int, **options: Any) -> Composition:
        if (task := as_task(task)).classes is None:
            raise UsageError(
                f"Expected a task with class probabilities for {method.__name__}, got {task.name}. "
                "Use a method that takes any loss: ie, mcl, smcl, relaxed, evolving or annealed."
            )
        return method(members, task, **options)

    return cast(F, compose)

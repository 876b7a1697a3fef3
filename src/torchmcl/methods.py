"""The family: each method a named composition of costs, an assignment and, for some, joint costs.

`build(name, members, classes, k, …)` returns a `Method`, a value that a run turns into an objective of its own. Every
option has its paper's default, [I] marks those inferred. A duration is a number of epochs, or a share of training.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, wraps
from typing import Any, TypeVar, cast, get_type_hints

from torch import Tensor, nn

from torchmcl._utils.durations import Duration, check_duration, spelled_out
from torchmcl._utils.frozen import FrozenDict
from torchmcl._utils.registry import Registry
from torchmcl.assignment import Annealed, Evolving, Relaxed, TopK, everyone, top_k
from torchmcl.combine import Combiner, drop_auxiliary, gated, gated_logits
from torchmcl.costs import Scaled, nothing, to_auxiliary, to_random_label, to_uniform
from torchmcl.errors import UsageError, known_name
from torchmcl.joint import BestTeacher, Choice, GatedTeacher, Joint, Margin, Similarity
from torchmcl.memory import Memory, Record
from torchmcl.objective import Objective, PerPixel, Phases, settles_after
from torchmcl.options import plain_number, right_types
from torchmcl.surveys import Held, ToTeacher
from torchmcl.tasks import Task, as_task

MOST = 100_000  # members


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

    def settles_after(self, epochs: int) -> int:
        """The epochs after which the objective has its final form, see `torchmcl.objective.settles_after`."""
        return settles_after(self.new_objective(), epochs, self.members)

    def owners(self, memory: Memory | None, taken: Tensor | None) -> Tensor | None:
        """Which members own each class, bool (classes, M), or None where that is not known.

        The flags of a memory that is fixed; otherwise the k members that took most of each class, `taken` (classes, M),
        of equals the first. A class that no member took has no owner.

        >>> import torch
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


@any_task
def ie(members: int, task: Task, *, k: int = 1) -> Composition:
    """Independent ensemble: every member takes every example, whatever k."""
    return Composition(Objective(task, nothing, everyone), k=members)


@any_task
def mcl(members: int, task: Task, *, k: int = 1, round: int = 5) -> Composition:
    """Multiple choice learning by block coordinate descent, Guzman-Rivera et al. 2012; `round` in epochs [I]."""
    return Composition(Objective(task, nothing, Held(task, TopK(k), every=round)), k)


@any_task
def smcl(members: int, task: Task, *, k: int = 1) -> Composition:
    """Stochastic multiple choice learning, Lee et al. 2016."""
    return Composition(Objective(task, nothing, TopK(k)), k)


@class_probabilities
def cmcl(
    members: int, task: Task, *, k: int | None = None, beta: float = 0.75, stochastic: bool = False
) -> Composition:
    """Confident multiple choice learning, Lee et al. 2017, k = 4; `stochastic` labelling is its version 1."""
    exact, k = Scaled(to_uniform, beta), min(4, members) if k is None else k
    leave = Scaled(to_random_label, beta) if stochastic else exact
    objective = Objective(task, leave, TopK(k), rank=exact)
    return Composition(objective, k, exchange="feature_sharing", teaches_leaving=True)


@class_probabilities
def vmcl(
    members: int, task: Task, *, k: int = 1, alpha: float = 1.0, delta: float = 0.5, eta: float = 1.0
) -> Composition:
    """Versatile multiple choice learning, Tian et al. 2019: a reconstruction [I], its weights too."""
    joint: list[Joint] = [Margin(alpha, margin=delta), Choice(eta)]
    objective = Objective(task, nothing, TopK(k), joint=joint)
    return Composition(objective, k, combine=gated, exchange="weight_sharing", gate="conv", teaches_leaving=True)


@class_probabilities
def mcl_kd(
    members: int,
    task: Task,
    *,
    k: int = 1,
    beta: float = 1.0,
    temperature: float = 2.0,
    pretrain: Duration = "30%",
) -> Composition:
    """MCL with knowledge distillation, Mun et al. 2018; members are first trained independently for `pretrain` [I]."""
    check_duration(pretrain, "pretrain", least=0)
    leave = Scaled(ToTeacher(temperature=temperature, after=pretrain), beta)
    alone, special = Objective(task, nothing, everyone), Objective(task, leave, TopK(k))
    names = ("independent", "specialising")
    return Composition(Phases(alone, special, after=pretrain, names=names, option="pretrain"), k)


@class_probabilities
def amcl(
    members: int,
    task: Task,
    *,
    k: int = 1,
    beta: float = 0.01,
    gamma: float = 0.5,
    warmup: Duration = "5%",
    memory: bool = True,
    balance: bool = False,
    groups: int | None = None,
) -> Composition:
    """Auxiliary class based multiple choice learning, Kim et al. 2022, eq. 4 to 6.

    Loss-based assignment, counted, for the `warmup`, memory-based after; `memory=False` never changes (the paper's
    ablation). The published warm-up is 5 epochs of 100 to 300. `balance` and `groups` (the classes that are counted,
    where they are not the targets') are ours.
    """
    check_duration(warmup, "warmup")
    counted = Memory(groups or task.outputs, members, k=k, balance=balance)
    leave = partial(to_auxiliary, classes=task.classes)
    by_loss = Objective(task, Scaled(leave, beta), Record(TopK(k), counted))
    by_memory = Objective(task, Scaled(leave, gamma), counted.recall)
    phases = Phases(by_loss, by_memory, after=warmup, names=("loss-based", "memory-based"), option="warmup")
    return Composition(
        phases if memory else by_loss,
        k,
        auxiliary=True,
        combine=drop_auxiliary,
        exchange="feature_fusion",
        teaches_leaving=True,
        published={"warmup": 5},
    )


@any_task
def relaxed(members: int, task: Task, *, k: int = 1, eps: float = 0.05) -> Composition:
    """Relaxed winner-takes-all, Rupprecht et al. 2017."""
    return Composition(Objective(task, nothing, Relaxed(k, eps)), k)


@any_task
def evolving(members: int, task: Task, *, k: int = 1) -> Composition:
    """Evolving winner-takes-all, Makansi et al. 2019."""
    return Composition(Objective(task, nothing, Evolving(k)), k)


@any_task
def annealed(
    members: int,
    task: Task,
    *,
    k: int = 1,
    start: float = 0.5,
    decay: float | None = None,
    cooling: Duration = "80%",
) -> Composition:
    """Annealed multiple choice learning, Perera et al. 2024: the choice is hard after `cooling` [I].

    A `decay` per epoch, published as 0.95 for schedules of hundreds of epochs, replaces the cooling.
    """
    check_duration(cooling, "cooling")
    return Composition(Objective(task, nothing, Annealed(k, start, decay, cooling)), k)


@class_probabilities
def emadnn(members: int, task: Task, *, k: int = 1, weight: float = 0.1, bounded: bool = True) -> Composition:
    """Efficient model averaging, Opitz et al. 2016 [I]: all take all, whatever k, and differ."""
    return Composition(Objective(task, nothing, everyone, joint=[Similarity(weight, bounded)]), k=members)


@class_probabilities
def one(
    members: int, task: Task, *, k: int = 1, temperature: float = 3.0, rampup: Duration = "26.6667%"
) -> Composition:
    """On-the-fly native ensemble, Lan et al. 2018: branches of one trunk learn from their gated sum, whatever k.

    The teacher's weight grows over `rampup`, published as 80 of 300 epochs.
    """
    check_duration(rampup, "rampup")
    return Composition(
        Objective(task, nothing, everyone, joint=[GatedTeacher(temperature, rampup)]),
        k=members,
        combine=gated_logits,
        exchange="weight_sharing",
        cut="last_stage",
        gate="pool",
    )


@class_probabilities
def kdcl(members: int, task: Task, *, k: int = 1, temperature: float = 2.0) -> Composition:
    """Collaborative knowledge distillation, naive, Guo et al. 2020: all learn from the best, whatever k."""
    return Composition(Objective(task, nothing, everyone, joint=[BestTeacher(temperature)]), k=members)


_FAMILY: Registry[Callable[..., Composition]] = Registry(
    "method", (ie, mcl, smcl, cmcl, vmcl, mcl_kd, amcl, relaxed, evolving, annealed, emadnn, one, kdcl)
)


def names() -> tuple[str, ...]:
    """The names of all methods, registered ones included."""
    return _FAMILY.names()


def function(name: str) -> Callable[..., Composition]:
    """The function that composes the method of that name."""
    return _FAMILY.find(name)


def register(method: Callable[..., Composition]) -> Callable[..., Composition]:
    """Register a method of your own, `(members, task, *, k=1, …) -> Composition`, under the function's name."""
    return _FAMILY.register(method)


def options(name: str) -> list[str]:
    """The names of a method's options, besides members and classes.

    >>> options("cmcl")
    ['k', 'beta', 'stochastic']
    """
    return list(inspect.signature(function(name)).parameters)[2:]


def build(name: str, members: int = 5, classes: int | Task = 10, *, task: Task | None = None, **given: Any) -> Method:
    """Build a method by its name for `members` networks and `classes` classes, or for another `task`.

    >>> method = build("amcl", members=5, classes=10, k=1, beta=.01, gamma=.5, warmup=5)
    >>> method.outputs, method.exchange, method.new_objective().memory.counts.shape
    (11, 'feature_fusion', torch.Size([10, 5]))
    """
    known = options(name)
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"Expected options of {name}: {', '.join(known)}; got {', '.join(unknown)}.")
    task = as_task(classes if task is None else task)
    _check_options(function(name), members, given)
    method = Method(function(name), members, task, given)
    method.new_objective()  # an option that its parts refuse is refused here
    return method


def _check_options(method: Callable[..., Composition], members: int, given: Mapping[str, Any]) -> None:
    hints = get_type_hints(method)
    for option in (option for option in given if hints.get(option) == Duration):
        check_duration(given[option], option, least=0)
    right_types({"members": members, **given}, method)
    if not 1 <= members <= MOST:
        raise UsageError(f"Expected 1 to {MOST:,} members, got {members}.")
    if not 1 <= (1 if given.get("k") is None else given["k"]) <= members:
        raise UsageError(f"Expected 1 <= k <= {members} members, got k={given['k']}.")
    if given.get("round", 1) < 1:
        raise UsageError(f"Expected a round of at least 1 epoch, got {given['round']}.")
    for option, value in given.items():  # beyond these a loss in float32 is no number
        least = 1e-3 if option == "temperature" else -1e6
        if hints.get(option) is float and not least <= value <= 1e6:
            raise UsageError(f"Expected {option} from {least:g} to 1e+06, got {value}.")


def in_epochs(method: Method, epochs: int) -> Method:
    """The method with every duration in epochs of a schedule; raises UsageError for one that leaves no room after it.

    >>> in_epochs(build("amcl"), 100).options["warmup"]
    5
    """
    hints = get_type_hints(method.compose)
    spelled = {
        option: spelled_out(value, epochs, option)
        for option, value in method.options.items()
        if hints.get(option) == Duration
    }
    method = replace(method, options={**method.options, **spelled})
    method.settles_after(epochs)  # raises for a duration that leaves no room
    return method


def is_registered(method: Method) -> bool:
    """Whether `build`, told the method's name and options, returns an equal method.

    >>> is_registered(build("amcl", k=2)), is_registered(Method(lambda members, task: ie(members, task), 2, 3))
    (True, False)
    """
    return _FAMILY.get(method.name) is method.compose

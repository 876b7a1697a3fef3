"""The family: each method a named composition of costs, an assignment and, for some, joint costs.

`build(name, members, classes, k, …)` makes one; every option has its paper's default, [I] marks those inferred.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from torchmcl.assignment import Annealed, Evolving, Relaxed, TopK, everyone
from torchmcl.combine import Combiner, drop_auxiliary, gated, gated_logits, mean
from torchmcl.costs import Scaled, cross_entropy, nothing, to_auxiliary, to_random_label, to_uniform
from torchmcl.errors import UsageError, known_name
from torchmcl.joint import BestTeacher, Choice, GatedTeacher, Joint, Margin, Similarity
from torchmcl.memory import Memory, Record
from torchmcl.objective import Objective, Phases
from torchmcl.options import right_types
from torchmcl.surveys import Held, ToTeacher

MOST = 100_000  # members, and classes


@dataclass(frozen=True, eq=False)
class Method:
    """A way to train an ensemble and to hear it: all that `Ensemble.build` and a training loop need to know.

    `exchange` is the default between members, `cut` where a network is split for it, `gate` the kind of gate, or None;
    `combine` makes one answer of the members' opinions. With `auxiliary`, networks have one output more than classes.
    `name` and `options` are what `build` was told.
    """

    members: int
    classes: int
    objective: nn.Module
    auxiliary: bool = False
    combine: Combiner = mean
    exchange: str = "none"
    cut: str = "exchange"
    gate: str | None = None
    name: str = "own"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> int:
        """What each member's network puts out: the classes, and the auxiliary one."""
        return self.classes + self.auxiliary

    @property
    def memory(self) -> Memory | None:
        """The memory of its objective, where it has one."""
        return next((part for part in self.objective.modules() if isinstance(part, Memory)), None)


def ie(members: int, classes: int, *, k: int = 1) -> Method:
    """Independent ensemble: everyone takes everything, whatever k."""
    return Method(members, classes, Objective(cross_entropy, nothing, everyone))


def mcl(members: int, classes: int, *, k: int = 1, round: int = 5) -> Method:
    """Multiple choice learning by block coordinate descent, Guzman-Rivera et al. 2012; `round` in epochs [I]."""
    return Method(members, classes, Objective(cross_entropy, nothing, Held(cross_entropy, TopK(k), every=round)))


def smcl(members: int, classes: int, *, k: int = 1) -> Method:
    """Stochastic multiple choice learning, Lee et al. 2016."""
    return Method(members, classes, Objective(cross_entropy, nothing, TopK(k)))


def cmcl(members: int, classes: int, *, k: int | None = None, beta: float = 0.75, stochastic: bool = False) -> Method:
    """Confident multiple choice learning, Lee et al. 2017, k = 4; `stochastic` labelling is its version 1."""
    exact, k = Scaled(to_uniform, beta), min(4, members) if k is None else k
    leave = Scaled(to_random_label, beta) if stochastic else exact
    return Method(members, classes, Objective(cross_entropy, leave, TopK(k), rank=exact), exchange="feature_sharing")


def vmcl(members: int, classes: int, *, k: int = 1, alpha: float = 1.0, delta: float = 0.5, eta: float = 1.0) -> Method:
    """Versatile multiple choice learning, Tian et al. 2019: a reconstruction [I], its weights too."""
    joint: list[Joint] = [Margin(alpha, margin=delta), Choice(eta)]
    objective = Objective(cross_entropy, nothing, TopK(k), joint=joint)
    return Method(members, classes, objective, combine=gated, exchange="weight_sharing", gate="conv")


def mcl_kd(
    members: int, classes: int, *, k: int = 1, beta: float = 1.0, temperature: float = 2.0, pretrain: int = 10
) -> Method:
    """MCL with knowledge distillation, Mun et al. 2018; `pretrain` epochs as an independent ensemble come first [I]."""
    leave = Scaled(ToTeacher(temperature=temperature, after=pretrain), beta)
    alone, special = Objective(cross_entropy, nothing, everyone), Objective(cross_entropy, leave, TopK(k))
    return Method(members, classes, Phases(alone, special, after=pretrain, names=("independent", "specialising")))


def amcl(
    members: int,
    classes: int,
    *,
    k: int = 1,
    beta: float = 0.01,
    gamma: float = 0.5,
    warmup: int = 5,
    memory: bool = True,
    balance: bool = False,
    groups: int | None = None,
) -> Method:
    """Auxiliary class based multiple choice learning, Kim et al. 2022, eq. 4 to 6.

    Loss-based assignment, counted, for `warmup` epochs, memory-based after; `memory=False` never changes (the paper's
    ablation). `balance` and `groups` (the classes that are counted, where they are not the targets') are ours.
    """
    counted = Memory(groups or classes, members, k=k, balance=balance)
    leave = partial(to_auxiliary, classes=classes)
    by_loss = Objective(cross_entropy, Scaled(leave, beta), Record(TopK(k), counted))
    by_memory = Objective(cross_entropy, Scaled(leave, gamma), counted.recall)
    phases = Phases(by_loss, by_memory, after=warmup, names=("loss-based", "memory-based"))
    objective = phases if memory else by_loss
    return Method(members, classes, objective, auxiliary=True, combine=drop_auxiliary, exchange="feature_fusion")


def relaxed(members: int, classes: int, *, k: int = 1, eps: float = 0.05) -> Method:
    """Relaxed winner-takes-all, Rupprecht et al. 2017."""
    return Method(members, classes, Objective(cross_entropy, nothing, Relaxed(k, eps)))


def evolving(members: int, classes: int, *, k: int = 1) -> Method:
    """Evolving winner-takes-all, Makansi et al. 2019."""
    return Method(members, classes, Objective(cross_entropy, nothing, Evolving(k)))


def annealed(members: int, classes: int, *, k: int = 1, start: float = 0.5, decay: float = 0.95) -> Method:
    """Annealed multiple choice learning, Perera et al. 2024."""
    return Method(members, classes, Objective(cross_entropy, nothing, Annealed(k, start, decay)))


def emadnn(members: int, classes: int, *, k: int = 1, weight: float = 0.1, bounded: bool = True) -> Method:
    """Efficient model averaging, Opitz et al. 2016 [I]: all take all, whatever k, and differ."""
    return Method(members, classes, Objective(cross_entropy, nothing, everyone, joint=[Similarity(weight, bounded)]))


def one(members: int, classes: int, *, k: int = 1, temperature: float = 3.0, rampup: int = 80) -> Method:
    """On-the-fly native ensemble, Lan et al. 2018: branches of one trunk learn from their gated sum, whatever k."""
    objective = Objective(cross_entropy, nothing, everyone, joint=[GatedTeacher(temperature, rampup)])
    return Method(
        members,
        classes,
        objective,
        combine=gated_logits,
        exchange="weight_sharing",
        cut="last_stage",
        gate="pool",
    )


def kdcl(members: int, classes: int, *, k: int = 1, temperature: float = 2.0) -> Method:
    """Collaborative knowledge distillation, naive, Guo et al. 2020: all learn from the best, whatever k."""
    return Method(members, classes, Objective(cross_entropy, nothing, everyone, joint=[BestTeacher(temperature)]))


FAMILY: dict[str, Callable[..., Method]] = {
    method.__name__: method
    for method in (ie, mcl, smcl, cmcl, vmcl, mcl_kd, amcl, relaxed, evolving, annealed, emadnn, one, kdcl)
}
NAMES = tuple(FAMILY)


def register(method: Callable[..., Method]) -> Callable[..., Method]:
    """Let `build` know a method of your own, `(members, classes, *, k=1, …) -> Method`, by the function's name."""
    if FAMILY.setdefault(method.__name__, method) is not method:
        raise UsageError(f"Expected a name that no method has yet, got {method.__name__!r}. Rename the function.")
    return method


def options(name: str) -> list[str]:
    """What a method can be told besides members and classes.

    >>> options("cmcl")
    ['k', 'beta', 'stochastic']
    """
    known_name("method", name, FAMILY)
    return list(inspect.signature(FAMILY[name]).parameters)[2:]


def build(name: str, members: int = 5, classes: int = 10, **given: Any) -> Method:
    """Make a method of the family for `members` networks and `classes` classes.

    >>> method = build("amcl", members=5, classes=10, k=1, beta=.01, gamma=.5, warmup=5)
    >>> method.outputs, method.exchange, method.memory.counts.shape
    (11, 'feature_fusion', torch.Size([10, 5]))
    """
    known = options(name)
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"Expected options of {name}: {', '.join(known)}; got {', '.join(unknown)}.")
    right_types({"members": members, "classes": classes, **given}, FAMILY[name])
    if not (1 <= members <= MOST and 2 <= classes <= MOST):
        raise UsageError(f"Expected 1 to {MOST:,} members and 2 to {MOST:,} classes, got {members} and {classes}.")
    if not 1 <= (1 if given.get("k") is None else given["k"]) <= members:
        raise UsageError(f"Expected 1 <= k <= {members} members, got k={given['k']}.")
    if any(given.get(count, 1) < 1 for count in ("warmup", "round", "rampup")):
        raise UsageError("Expected warmup, round and rampup of at least 1 epoch, got less.")
    taken = inspect.signature(FAMILY[name]).parameters
    for option, value in given.items():  # beyond these a loss in float32 is no number
        least = 1e-3 if option == "temperature" else -1e6
        if taken[option].annotation is float and not least <= value <= 1e6:
            raise UsageError(f"Expected {option} from {least:g} to 1e+06, got {value}.")
    return replace(FAMILY[name](members, classes, **given), name=name, options=given)


def can_rebuild(method: Method) -> bool:
    """Whether `build`, told the method's name and options, gives one that hears members alike; not so for your own.

    >>> can_rebuild(build("amcl", k=2)), can_rebuild(replace(build("ie"), combine=gated_logits))
    (True, False)
    """
    if method.name not in FAMILY:
        return False
    again = build(method.name, method.members, method.classes, **method.options)
    return all(
        getattr(again, part) == getattr(method, part) for part in ("auxiliary", "combine", "exchange", "cut", "gate")
    )

"""Methods: named compositions of costs, an assignment and, for some methods, joint costs.

`build(name, members, classes, k, …)` returns a `Method`, an immutable value from which each run creates its own
objective. Each method is defined by a function of the number of members M, the task or a number of classes, and `k`,
the number of members that take each example. Options default to the values in the method's paper; [I] marks choices
that we inferred because that paper does not state them. A duration is a number of epochs or a share of training.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torchmcl._utils.durations import Duration, check_duration, resolve_duration
from torchmcl._utils.registry import Registry
from torchmcl._utils.validation import type_hints, validate_types
from torchmcl.errors import UsageError
from torchmcl.methods.amcl import amcl
from torchmcl.methods.annealed import annealed
from torchmcl.methods.cmcl import cmcl
from torchmcl.methods.emadnn import emadnn
from torchmcl.methods.evolving import evolving
from torchmcl.methods.ie import ie
from torchmcl.methods.kdcl import kdcl
from torchmcl.methods.mcl import mcl
from torchmcl.methods.mcl_kd import mcl_kd
from torchmcl.methods.method import Composition, Method, any_task, class_probabilities
from torchmcl.methods.one import one
from torchmcl.methods.relaxed import relaxed
from torchmcl.methods.smcl import smcl
from torchmcl.methods.vmcl import vmcl
from torchmcl.structures.task import Task
from torchmcl.tasks import as_task

__all__ = [
    "Composition",
    "Method",
    "amcl",
    "annealed",
    "any_task",
    "build",
    "class_probabilities",
    "cmcl",
    "emadnn",
    "evolving",
    "function",
    "ie",
    "in_epochs",
    "is_registered",
    "kdcl",
    "mcl",
    "mcl_kd",
    "names",
    "one",
    "options",
    "register",
    "relaxed",
    "smcl",
    "vmcl",
]

MAX_MEMBERS = 100_000
# In the literature, "aMCL" mostly means annealed MCL (Perera et al. 2024).
ALIASES = {"auxiliary": "amcl", "annealed_mcl": "annealed"}


_FAMILY: Registry[Callable[..., Composition]] = Registry(
    "method",
    (ie, mcl, smcl, cmcl, vmcl, mcl_kd, amcl, relaxed, evolving, annealed, emadnn, one, kdcl),
    aliases=ALIASES,
)


def names() -> tuple[str, ...]:
    """Return the names of all methods, including registered ones."""
    return _FAMILY.names()


def function(name: str) -> Callable[..., Composition]:
    """Return the function that composes the method with this name or alias.

    >>> function("annealed_mcl").__name__
    'annealed'
    """
    return _FAMILY.find(name)


def register(method: Callable[..., Composition]) -> Callable[..., Composition]:
    """A decorator that registers your own method, `(members, task, *, k=1, …) -> Composition`, under its name."""
    return _FAMILY.register(method)


def options(name: str) -> list[str]:
    """Return the names of a method's options, except members and task.

    >>> options("relaxed")
    ['k', 'eps']
    """
    return list(inspect.signature(function(name)).parameters)[2:]


def build(name: str, members: int = 5, classes: int | Task = 10, *, task: Task | None = None, **given: Any) -> Method:
    """Build a method by its name.

    Args:
        name: The name or alias of a method; see `names`.
        members: The number of members M.
        classes: The number of classes, or a task.
        task: The task; if given, `classes` is ignored.
        **given: Options of the method; see `options`.

    Raises:
        UsageError: If the name or an option is unknown, or a value has the wrong type or range.

    >>> method = build("amcl", members=5, classes=10, k=1, beta=0.01, gamma=0.5, warmup=5)
    >>> method.outputs, method.exchange, method.new_objective().memory.counts.shape
    (11, 'feature_fusion', torch.Size([10, 5]))
    """
    known = options(name)
    if unknown := sorted(set(given) - set(known)):
        raise UsageError(f"{name} has no option {', '.join(unknown)}. Available: {', '.join(known)}.")
    task = as_task(classes if task is None else task)
    _check_options(function(name), members, given)
    method = Method(function(name), members, task, given)
    method.new_objective()  # raises UsageError if a part of the method rejects an option
    return method


def _check_options(method: Callable[..., Composition], members: int, given: Mapping[str, Any]) -> None:
    hints = type_hints(method)
    for option in (option for option in given if hints.get(option) == Duration):
        check_duration(given[option], option, least=0, stable=True)  # the method checks the rest
    validate_types({"members": members, **given}, method)
    if not 1 <= members <= MAX_MEMBERS:
        raise UsageError(f"Expected 1 to {MAX_MEMBERS:,} members, got {members}.")
    if not 1 <= (1 if given.get("k") is None else given["k"]) <= members:
        raise UsageError(f"Expected 1 <= k <= {members} members, got k={given['k']}.")
    if given.get("round", 1) < 1:
        raise UsageError(f"Expected round >= 1, got {given['round']}.")
    for option, value in given.items():  # outside these limits, float32 losses can overflow
        least = 1e-3 if option == "temperature" else -1e6
        if hints.get(option) is float and not least <= value <= 1e6:
            raise UsageError(f"Expected {option} from {least:g} to 1e+06, got {value}.")


def in_epochs(method: Method, epochs: int) -> Method:
    """Convert a method's durations to numbers of epochs in a schedule; raise UsageError if a duration is too long.

    >>> in_epochs(build("amcl"), 100).options["warmup"]
    5
    """
    hints = type_hints(method.compose)
    durations = {
        option: resolve_duration(value, epochs, option)
        for option, value in method.options.items()
        if hints.get(option) == Duration
    }
    method = replace(method, options={**method.options, **durations})
    method.schedule_end(epochs)  # raises UsageError if a duration is too long
    return method


def is_registered(method: Method) -> bool:
    """Return whether `build` can recreate this method from its name and options.

    >>> is_registered(build("amcl", k=2)), is_registered(Method(lambda members, task: ie(members, task), 2, 3))
    (True, False)
    """
    return _FAMILY.get(method.name) is method.compose

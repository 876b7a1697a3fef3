"""The configuration of a training: one frozen value that the command line, `fit`, run folders and studies share."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from torchmcl._utils.durations import as_share
from torchmcl._utils.frozen import FrozenDict
from torchmcl._utils.validation import OWN, plain_fields, plain_number, validate_types
from torchmcl.errors import UsageError, known_name
from torchmcl.serialization.data_config import DataConfig
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import PUBLISHED_EPOCHS, Recipe

if TYPE_CHECKING:
    from torchmcl.data.examples import DataSet
    from torchmcl.methods import Method
    from torchmcl.structures.task import Task

DECIDED_BY_DATA = ("classes", "channels", "inputs", "cut")  # arguments of networks that follow from data and method
# Options that were added since results were stored, and the value at which nothing changes. There they are left out of
# the identity, so that earlier results keep their hash.
ADDED = {
    "augment": None,
    "transform": None,
    "accumulate": 1,
    "task": None,
    "class_weight": None,
    "sampling": "examples",
}
# Options that do not matter to the numbers.
BESIDE = {"checkpoint_steps", "tensorboard", "data_dir", "data_in_memory"}
BESIDE |= {one.name for one in fields(Machine)} - {"precision"}
# Arguments of `fit` or of a command that are not options of a training.
OF_THE_CALL = (
    *("callbacks", "loggers", "metrics", "out", "overwrite", "resume", "verbose"),
    *("quiet", "debug", "config", "import"),
)


@dataclass(frozen=True)
class MethodConfig:
    """A method, its members and its options.

    `classes` is set by a `Method` object, and must be the data's; `given` is a `Method` that is not registered. `task`
    is the name of a task, None where the data decides; that of a `Task` begins with `own:`.
    """

    name: str = "amcl"
    members: int = 5
    unit: str = "image"
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = field(default=None, compare=False)
    given: Any = field(default=None, compare=False)
    task: str | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types({"members": self.members, "unit": self.unit, "task": self.task}, MethodConfig)
        known_name("unit", self.unit, ("image", "pixel"))
        object.__setattr__(self, "options", FrozenDict({name: plain_number(v) for name, v in self.options.items()}))
        self.build(self._usual)  # what is wrong with the options is said here

    @classmethod
    def of(
        cls, method: "str | Method", members: int | None, unit: str, options: Mapping[str, Any], task: Any = None
    ) -> "MethodConfig":
        """From a method's name, or from a `Method`, which states its members and options itself."""
        from torchmcl import methods

        task = cls._task(method, task)
        if isinstance(method, str):
            name = methods.function(method).__name__  # an alias is stored as the name that it stands for
            return cls(name, 5 if members is None else members, unit, options, task=task)
        if options:
            raise UsageError(
                f"Expected options for a method given by name, got {', '.join(options)} beside a Method. "
                "Build the method with them."
            )
        if members not in (None, method.members):
            raise UsageError(
                f"Expected {method.members} members, as the method was built, got members={members}. "
                "Leave members out, or build the method with as many."
            )
        if "pixel" in (unit, method.unit):
            method, unit = replace(method, unit="pixel"), "pixel"
        if methods.is_registered(method):
            return cls(method.name, method.members, unit, method.options, method.classes, task=task)
        return cls(f"{OWN}{method.name}", method.members, unit, method.options, method.classes, method, task)

    @property
    def _usual(self) -> "Task | int":
        """A task to compose the method for while the data is not known."""
        return self.classes or 2 if self.given is None else self.given.task

    @staticmethod
    def _task(method: "str | Method", task: Any) -> str | None:
        """The name of a task, which a `Method` may state as well; None where the data decides."""
        from torchmcl import tasks

        if task is None and not isinstance(method, str) and method.task != tasks.Classification(method.classes or 2):
            task = method.task
        if isinstance(task, str) and not task.startswith(OWN):
            known_name("task", task, tasks.names(), register=True)
        elif not (task is None or isinstance(task, str | tasks.Task)):
            raise UsageError(f"Expected a task out of {', '.join(tasks.names())}, or a Task, got {task!r}.")
        return f"{OWN}{task!r}" if isinstance(task, tasks.Task) else task

    def build(self, task: "Task | int", groups: int | None = None) -> "Method":
        """The method for a task or a number of classes, and of groups where a memory counts those."""
        from torchmcl import methods
        from torchmcl.tasks import as_task

        task = as_task(task)
        if self.classes not in (None, task.classes or 0):
            raise UsageError(
                f"Expected a method for {self.members} members and {task.classes} classes, "
                f"got one for {self.members} and {self.classes}."
            )
        if self.given is not None:
            return replace(self.given, task=task)
        options = dict(self.options)
        if "groups" in methods.options(self.name) and options.get("groups") is None:
            options["groups"] = groups
        return replace(methods.build(self.name, self.members, task=task, **options), unit=self.unit)

    def resolved(self, data: str, epochs: int) -> "MethodConfig":
        """With every option spelled out and durations in epochs.

        A duration that is not given is the published one, in proportion to the data set's published schedule, and the
        method's own default share where the data set has none.
        """
        from torchmcl import methods

        method = self.build(self._usual)
        shares = {
            option: as_share(published, PUBLISHED_EPOCHS[data])
            for option, published in method.published.items()
            if data in PUBLISHED_EPOCHS and option in method.options and option not in self.options
        }
        method = methods.in_epochs(replace(method, options={**method.options, **shares}), epochs)
        # The data decides groups that are not given.
        options = {name: value for name, value in method.options.items() if (name, value) != ("groups", None)}
        return replace(self, options=options, given=method if self.given else None)


@dataclass(frozen=True)
class NetworkConfig:
    """A network, its options, and what members exchange; the name of a callable or a list begins with `own:`."""

    name: str = "simple_cnn"
    exchange: str = "default"
    preset: str = "default"
    cut: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from torchmcl.ensemble import exchange

        plain_fields(self)
        validate_types({"exchange": self.exchange, "preset": self.preset, "cut": self.cut}, NetworkConfig)
        known_name("kind of exchange", self.exchange, ("default", *exchange.names()), register=True)
        known_name("preset", self.preset, exchange.PRESETS)
        object.__setattr__(self, "options", FrozenDict({name: plain_number(v) for name, v in self.options.items()}))
        if self.cut is not None and not self.own:
            raise UsageError(
                f"Expected cut for a network of your own, got cut={self.cut} for {self.name}. Leave it out."
            )

    @property
    def own(self) -> bool:
        """Whether the network is an object of the caller's."""
        return self.name.startswith(OWN)

    def resolved(self, method: MethodConfig) -> "NetworkConfig":
        """With every option of the network spelled out, and the exchange by its own name.

        A network that cannot be split keeps the exchange `default`, and trains without.
        """
        from torchmcl import networks

        if self.own:
            return self
        builder, exchange = networks.builder(self.name), self.exchange
        if exchange == "default" and "cut" in signature(builder).parameters:
            exchange = method.build(method._usual).exchange
        return replace(self, exchange=exchange, options={**defaults(builder), **self.options})


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of one training.

    `TrainConfig.of(**flat)` reads options as `fit` and the command line take them, `flat()` gives them back, and
    `resolved()` spells out every default, which is what run folders and results keep.

    >>> config = TrainConfig.of(method="amcl", network="mlp", data="digits", epochs=40, width=8)
    >>> config.resolved().method.options["warmup"], config.resolved().network.exchange
    (2, 'feature_fusion')
    """

    method: MethodConfig
    network: NetworkConfig
    data: str
    source: DataConfig
    recipe: Recipe
    machine: Machine
    seed: int = 0
    checkpoint_steps: int = 1000
    tensorboard: bool = False
    transform: str | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types({name: getattr(self, name) for name in ("seed", "checkpoint_steps", "tensorboard")}, TrainConfig)
        if self.seed < 0 or self.checkpoint_steps < 1:
            raise UsageError(
                f"Expected a seed from 0 and checkpoint_steps from 1 on, got {self.seed} and {self.checkpoint_steps}."
            )

    @classmethod
    def of(
        cls,
        method: "str | Method" = "amcl",
        network: Any = "simple_cnn",
        data: "str | DataSet" = "digits",
        *,
        members: int | None = None,
        exchange: str = "default",
        preset: str = "default",
        unit: str = "image",
        cut: int | None = None,
        task: Any = None,
        seed: int = 0,
        checkpoint_steps: int = 1000,
        tensorboard: bool = False,
        transform: Any = None,
        **options: Any,
    ) -> "TrainConfig":
        """Read flat options, each of which belongs to exactly one part; None means the default.

        `method`, `network`, `data` and `task` are names or objects: a `Method`, a callable or list, a `DataSet`, a
        `Task`.
        """
        # An optimiser or a schedule of the caller's own is known by its name.
        own = {name: named(options[name]) for name in ("optimizer", "schedule") if callable(options.get(name))}
        if options.get("class_weight") is not None:
            own["class_weight"] = spelled_weights(options["class_weight"])
        if members is None and isinstance(method, str) and isinstance(network, list):
            members = len(network)
        parts = sort({**options, **own}, method, network)
        name, source = (data, DataConfig(**parts["data"])) if isinstance(data, str) else _loaded(data, parts["data"])
        return cls(
            MethodConfig.of(method, members, unit, parts["method"], task),
            NetworkConfig(named(network), exchange, preset, cut, parts["network"]),
            name,
            source,
            Recipe(**parts["recipe"]),
            Machine(**parts["machine"]),
            seed,
            checkpoint_steps,
            tensorboard,
            None if transform is None else named(transform),
        )

    def resolved(self) -> "TrainConfig":
        """With every default spelled out; raises UsageError for a duration that leaves no room for what follows it."""
        recipe = self.recipe.resolved(self.data)
        method = self.method.resolved(self.data, recipe.length())
        seed = self.seed if self.source.seed is None else self.source.seed
        return replace(
            self,
            method=method,
            network=self.network.resolved(method),
            recipe=recipe,
            source=replace(self.source, seed=seed),
        )

    def flat(self) -> dict[str, Any]:
        """The options as `of` takes them, in values that YAML and JSON can hold."""
        given = {
            "method": self.method.name,
            "network": self.network.name,
            "data": self.data,
            "members": self.method.members,
            "exchange": self.network.exchange,
            "preset": self.network.preset,
            "unit": self.method.unit,
            "task": self.method.task,
            "cut": self.network.cut,
            "seed": self.seed,
            "checkpoint_steps": self.checkpoint_steps,
            "tensorboard": self.tensorboard,
            "transform": self.transform,
            **self.method.options,
            **self.network.options,
            **{f"data_{name}": value for name, value in asdict(self.source).items()},
            **asdict(self.recipe),
            **asdict(self.machine),
        }
        return {name: _stored(value) for name, value in given.items()}

    def identity(self) -> dict[str, Any]:
        """Every choice that matters to the numbers, defaults spelled out: equal for two ways to ask for the same.

        Where the data is, which machine computes and how often a checkpoint is written do not matter, except for the
        precision.
        """
        spelled = {name: value for name, value in self.resolved().flat().items() if name not in BESIDE}
        if spelled["task"] in ("classification", "segmentation"):  # which the data decides as well
            spelled["task"] = None
        return {name: value for name, value in spelled.items() if name not in ADDED or value != ADDED[name]}


def sort(options: Mapping[str, Any], method: "str | Method", network: Any) -> dict[str, dict[str, Any]]:
    """Group options by the part that takes them; raises UsageError for an option of no part, or of two.

    >>> sort({"epochs": 3, "width": 8, "beta": 0.1, "data_limit": 9}, "amcl", "resnet10")["method"]
    {'beta': 0.1}
    """
    part_of = _parts(method, network)
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("data", "network", "method", "machine", "recipe")}
    for option, value in options.items():
        if value is None:  # the default, whichever part it belongs to
            continue
        if option not in part_of:
            near = get_close_matches(option[:100], part_of, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" There are {', '.join(sorted(part_of))}."
            if option == "quiet":  # the command line's
                hint = " Use verbose=False."
            about = f"{named(method)}, {named(network)}"
            raise UsageError(f"Expected options of {about}, recipe, machine or data, got {option}.{hint}")
        parts[part_of[option]][option.removeprefix("data_")] = value
    return parts


def _parts(method: "str | Method", network: Any) -> dict[str, str]:
    """The part that each option belongs to, of a method and a network as they are given."""
    from torchmcl import methods, networks

    tables: dict[str, list[str]] = {
        **_of_training(),
        "network": _options(networks.builder(network)) if isinstance(network, str) else [],
        "method": methods.options(method) if isinstance(method, str) else list(method.options),
    }
    part_of: dict[str, str] = {}
    for part, names in tables.items():
        for option in names:
            if part_of.setdefault(option, part) != part:
                which = {"method": method, "network": network}.get(part, part)
                raise UsageError(
                    f"Expected each option to belong to one part, got {option} of the {part} {named(which)} and of the "
                    f"{part_of[option]}. Rename the option of the {part}."
                )
    given = {"call"} if isinstance(method, str) else {"call", "method"}  # a Method has its options already
    return {option: part for option, part in part_of.items() if part not in given}


def _of_training() -> dict[str, list[str]]:
    """The options that do not depend on the method or the network."""
    own = {name for name in signature(TrainConfig.of).parameters if name != "options"} | set(OF_THE_CALL)
    return {
        "call": sorted(own),
        "data": [f"data_{one.name}" for one in fields(DataConfig)],
        "recipe": [one.name for one in fields(Recipe)],
        "machine": [one.name for one in fields(Machine)],
    }


def reserved() -> set[str]:
    """The names that an option of a method or a network cannot have."""
    return {name for names in _of_training().values() for name in names}


def _options(builder: Callable[..., Any]) -> list[str]:
    return [name for name in signature(builder).parameters if name not in ("classes", "cut")]


def defaults(builder: Callable[..., Any]) -> dict[str, Any]:
    """The optional arguments of a network's builder and their values, without those that the data decides."""
    every = signature(builder).parameters.values()
    usual = {one.name: one.default for one in every if one.default is not Parameter.empty}
    return {name: value for name, value in usual.items() if name not in DECIDED_BY_DATA}


def named(thing: Any) -> str:
    """The name of a method or a network; own:NAME for an object of the caller's.

    >>> named("mlp"), named(dict)
    ('mlp', 'own:dict')
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, list | tuple):
        return f"{OWN}list"
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__
    return f"{OWN}{name}"


def spelled_weights(weights: Any) -> str:
    """Class weights in one line, as a command line gives them: balanced, one number per class, or name=number.

    >>> spelled_weights([1, 2.5]), spelled_weights({"cat": 2}), spelled_weights("balanced")
    ('1,2.5', 'cat=2', 'balanced')
    """
    if isinstance(weights, str):
        return ",".join(part.strip() for part in weights.split(","))
    try:
        if isinstance(weights, Mapping):
            return ",".join(f"{name}={float(weight):.17g}" for name, weight in sorted(weights.items()))
        return ",".join(f"{float(weight):.17g}" for weight in weights)
    except (TypeError, ValueError) as problem:
        raise UsageError(
            f"Expected class_weight as 'balanced', one number per class, or numbers by class name, got {weights!r}."
        ) from problem


def _stored(value: Any) -> Any:
    """A value for YAML and JSON; an object of the caller's, such as a function, by its name."""
    if isinstance(value, list | tuple):
        return [_stored(part) for part in value]
    return value if value is None or isinstance(value, str | int | float) else named(value)


def _loaded(data: "DataSet", options: Mapping[str, Any]) -> tuple[str, DataConfig]:
    """How a `DataSet` came about, for the record; options on how to read it come too late."""
    if options:
        few = ", ".join(f"data_{name}" for name in options)
        raise UsageError(
            f"Expected {few} for a data set given by name, got a data set that is loaded already. "
            "Pass them to torchmcl.data.load, or give fit the name."
        )
    if data.source is None:
        return f"{OWN}{data.name}", DataConfig(validation=0.0)
    return data.name, DataConfig(**data.source)


def difference(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """The first choice that two trainings do not share, if any.

    >>> difference({"seed": 0, "epochs": 3}, {"seed": 1, "epochs": 3})
    'seed'
    """
    return next((name for name in (*wanted, *got) if wanted.get(name) != got.get(name)), None)

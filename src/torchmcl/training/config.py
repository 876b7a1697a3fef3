"""The configuration of a training run, shared by the command line, `fit`, run folders and studies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torchmcl._utils.durations import as_share
from torchmcl._utils.frozen import FrozenDict
from torchmcl._utils.validation import OWN, plain_fields, plain_number, validate_types
from torchmcl.errors import UsageError, known_name
from torchmcl.serialization.data_config import DataConfig
from torchmcl.training.machine import Machine
from torchmcl.training.published_recipes import with_published
from torchmcl.training.recipe import PUBLISHED_EPOCHS, Recipe

if TYPE_CHECKING:
    from torchmcl.data.examples import DataSet
    from torchmcl.methods import Method
    from torchmcl.structures.task import Task

DECIDED_BY_DATA = (
    "classes",
    "channels",
    "inputs",
    "dense",
    "architecture",
    "cut",
)  # network arguments set by the data and the method
LARGE = ("cifar10", "cifar100", "svhn", "tiny-imagenet")  # data sets with tens of thousands of images
# Options that were added after some results had been stored, with their neutral values. `identity` omits an option that
# has its neutral value, so that the stored results keep their hash.
NEUTRAL: dict[str, Any] = {"augment": None, "transform": None, "accumulate": 1, "task": None, "class_weight": None}
NEUTRAL |= {
    "data_sample": None,
    "sampling": "examples",
    "backbone_rate": None,
    "initial_weights": None,
    "norm_eps": None,
}
NEUTRAL |= {
    "data_skip_unreadable": False,
    "weight_decay_on": "all",
    "drop_at": None,
    "data_preprocess": None,
    "class_mean": False,
    "first_epoch": 1,
}
NEUTRAL |= {"sample_others": 1.0, "sample_correction": "prior", "branch": None, "branch_groups": "random"}
NEUTRAL |= {"head": "pooled", "balance": None, "slack": 0.0}
NEUTRAL |= {"loss": "squared", "score": None, "score_weight": 0.5, "negatives": None, "monitor": None}
# Options that do not affect the results.
WITHOUT_EFFECT = {"checkpoint_steps", "tensorboard", "data_dir", "data_in_memory"}
WITHOUT_EFFECT |= {one.name for one in fields(Machine)} - {"precision"}
# Arguments of `fit` or of a command that are not part of the configuration.
CALL_ARGUMENTS = (
    *("callbacks", "loggers", "metrics", "out", "overwrite", "resume", "verbose"),
    *("quiet", "debug", "config", "import"),
)


# The fields of `Recipe` for regression. With the rate of SGD in the paper, the squared error diverges.
REGRESSION: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.001}


class DataKind(NamedTuple):
    """What is known about data before it is loaded: whether its examples are rows, and its targets are floats or masks.

    The names of data sets, a `DataSet` and the headers of an npz file tell; other data has images and classes. A task
    or one of its options also tells that targets are floats.
    """

    table: bool = False
    continuous: bool = False
    masks: bool = False

    @property
    def network(self) -> str:
        """The default network."""
        return "mlp" if self.table else "fcn" if self.masks else "simple_cnn"

    @classmethod
    def of(cls, data: "str | DataSet", task: Any = None, options: Mapping[str, Any] | None = None) -> "DataKind":
        """Return the kind of a data set.

        >>> DataKind.of("diabetes").network, DataKind.of("icoseg").network
        ('mlp', 'fcn')
        """
        known = getattr(task, "name", task) in ("Regression", "regression")
        known = known or any((options or {}).get(name) is not None for name in ("loss", "score"))
        if not isinstance(data, str):
            return cls(len(data.train.images.shape) == 2, data.train.continuous, data.train.dense)
        from torchmcl.data import MASKS, NUMBERS
        from torchmcl.data.datasets.npz import peek

        if not data.startswith("npz:"):
            return cls(data in NUMBERS, known or data in NUMBERS, data.partition(":")[0] in MASKS)
        (x, _), (y, kind) = (peek(Path(data[4:]).expanduser()).get(name, ((), "")) for name in "xy")
        known = known or kind == "f"
        return cls(len(x) == 2, known, len(y) == 3 and not known)


@dataclass(frozen=True)
class MethodConfig:
    """A method, its number of members and its options.

    `classes` is the number of classes that a `Method` object was built for, and must equal that of the data. `given` is
    the `Method` object if it is not registered. `task` is the name of the task, or None if the data determines it, and
    `task_options` are its options. An object, such as a `Task` with a loss of your own, is stored as a name that begins
    with `own:`.
    """

    name: str = "amcl"
    members: int = 5
    unit: str = "image"
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = field(default=None, compare=False)
    given: Any = field(default=None, compare=False)
    task: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types({"members": self.members, "unit": self.unit, "task": self.task}, MethodConfig)
        known_name("unit", self.unit, ("image", "pixel"))
        for name in ("options", "task_options"):
            plain = {option: plain_number(value) for option, value in getattr(self, name).items()}
            object.__setattr__(self, name, FrozenDict(plain))
        self.build(self._placeholder_task)  # raises UsageError for invalid options

    @classmethod
    def of(
        cls,
        method: "str | Method",
        members: int | None,
        unit: str,
        options: Mapping[str, Any],
        task: Any = None,
        task_options: Mapping[str, Any] | None = None,
    ) -> "MethodConfig":
        """Create the configuration from a method's name, or from a `Method`, which already has members and options."""
        from torchmcl import methods

        task, given = cls._task(method, task)
        if given and task_options:
            raise UsageError(
                f"Cannot apply the options {', '.join(task_options)} to a Task object. Set them in the task."
            )
        about: dict[str, Any] = {"task": task, "task_options": given or task_options or {}}
        if isinstance(method, str):
            name = methods.function(method).__name__  # resolves aliases
            return cls(name, 5 if members is None else members, unit, options, **about)
        if options:
            raise UsageError(
                f"Cannot apply the options {', '.join(options)} to a Method object. Pass them to methods.build."
            )
        if members not in (None, method.members):
            raise UsageError(f"The method has {method.members} members, not {members}. Leave members out.")
        if "pixel" in (unit, method.unit):
            method, unit = replace(method, unit="pixel"), "pixel"
        if methods.is_registered(method):
            return cls(method.name, method.members, unit, method.options, method.classes or None, **about)
        return cls(f"{OWN}{method.name}", method.members, unit, method.options, method.classes or None, method, **about)

    @property
    def _placeholder_task(self) -> "Task | int":
        """A task or a number of classes to build the method with before the data is known."""
        return self.classes or 2 if self.given is None else self.given.task

    @staticmethod
    def _task(method: "str | Method", task: Any) -> tuple[str | None, Mapping[str, Any]]:
        """Return the name and the options of the task given by `task` or by a `Method`.

        The name is None if the data determines the task. The options of a `Task` are those of a task that `tasks.build`
        creates from its name; other ones are stored as `own:` and have no options.
        """
        from torchmcl import tasks

        if task is None and not isinstance(method, str) and method.task != tasks.Classification(method.classes or 2):
            task = method.task
        if isinstance(task, str) and not task.startswith(OWN):
            known_name("task", task, tasks.names(), register=True)
        elif not (task is None or isinstance(task, str | tasks.Task)):
            raise UsageError(f"Expected a Task or one of {', '.join(tasks.names())} for task, got {task!r}.")
        if not isinstance(task, tasks.Task):
            return task, {}
        if task.options:
            name = task.name.lower()
            options = {option: task.options[option] for option in tasks.options(name)}
            if tasks.build(name, task.size, **options) == task:
                return name, options
        return f"{OWN}{task!r}", {}

    def build(self, task: "Task | int", groups: int | None = None) -> "Method":
        """Build the method for a task or a number of classes. `groups` is the default of the method's option `groups`.

        Raises:
            UsageError: If an option is invalid, or if the method was built for another number of classes.
        """
        from torchmcl import methods
        from torchmcl.tasks import as_task

        task = as_task(task)
        if self.classes not in (None, task.classes or 0):
            raise UsageError(
                f"The data has {task.classes} classes, but the method was built for {self.classes}. "
                "Build the method for the classes of the data."
            )
        if self.given is not None:
            return replace(self.given, task=task)
        options = dict(self.options)
        if "groups" in methods.options(self.name) and options.get("groups") is None:
            options["groups"] = groups
        return replace(methods.build(self.name, self.members, task=task, **options), unit=self.unit)

    def resolved(self, data: str, epochs: int) -> "MethodConfig":
        """Return the configuration with a value for every option and with durations in epochs.

        If a duration is not given, the default is the same fraction of the epochs as in the published schedule for the
        data set. For data sets without a published schedule, the default is the method's default fraction.
        """
        from torchmcl import methods

        method = self.build(self._placeholder_task)
        shares = {
            option: as_share(published, PUBLISHED_EPOCHS[data])
            for option, published in method.composition.published.items()
            if data in PUBLISHED_EPOCHS and option in method.options and option not in self.options
        }
        method = methods.in_epochs(replace(method, options={**method.options, **shares}), epochs)
        # The data determines the number of groups if it is not given.
        options = {name: value for name, value in method.options.items() if (name, value) != ("groups", None)}
        resolved = replace(self, options=options, given=method if self.given else None)
        return resolved if self.task is None or self.task.startswith(OWN) else resolved.with_task(self.task)

    def with_task(self, name: str) -> "MethodConfig":
        """Return the configuration with the name of a task and a value for each of its options.

        Raises:
            UsageError: If the task does not have an option that is given.
        """
        from torchmcl import tasks

        known = tasks.options(name)
        if unknown := sorted(set(self.task_options) - set(known)):
            raise UsageError(f"The task {name} has no option {', '.join(unknown)}. Omit it.")
        return replace(self, task=name, task_options={**known, **self.task_options})


@dataclass(frozen=True)
class NetworkConfig:
    """A network, its options and the exchange. A network object is stored as a name that begins with `own:`."""

    name: str = "simple_cnn"
    exchange: str = "default"
    preset: str = "default"
    cut: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    norm_eps: float | None = None

    def __post_init__(self) -> None:
        from torchmcl.ensemble import exchange

        plain_fields(self)
        names = ("exchange", "preset", "cut", "norm_eps")
        validate_types({name: getattr(self, name) for name in names}, NetworkConfig)
        known_name("kind of exchange", self.exchange, ("default", *exchange.names()), register=True)
        known_name("preset", self.preset, exchange.PRESETS)
        object.__setattr__(self, "options", FrozenDict({name: plain_number(v) for name, v in self.options.items()}))
        if self.norm_eps is not None and not 0 < self.norm_eps <= 1:
            raise UsageError(f"Expected 0 < norm_eps <= 1, got {self.norm_eps}.")
        if self.cut is not None and not self.custom:
            raise UsageError(f"The option cut applies only to custom networks, not to {self.name}. Omit the option.")

    @property
    def custom(self) -> bool:
        """Whether the network is an object instead of the name of a registered network."""
        return self.name.startswith(OWN)

    @property
    def image_size(self) -> int | None:
        """The height and width of the images that a pretrained network expects, or None for other networks."""
        from torchmcl import networks

        expected = None if self.custom else networks.input_of(self.name)
        if expected is None:
            return None
        size = self.options.get("image_size")
        return expected.size if size is None else size

    def preprocess(self, shape: Sequence[int], *, dense: bool = False) -> str | None:
        """Return the preprocessing of raw images (C, H, W) for a pretrained network, or None for other networks.

        >>> NetworkConfig("efficientnet_lite0").preprocess((1, 32, 32))
        'rgb+resize:224x224+normalize:127/128'
        """
        from torchmcl import networks

        expected = None if self.custom else networks.input_of(self.name)
        if expected is None:
            return None
        size = self.image_size
        steps = ["rgb"] if shape[0] == 1 else []
        if not dense and tuple(shape[1:]) != (size, size):  # masks have the size of the images
            steps.append(f"resize:{size}x{size}")
        return "+".join([*steps, expected.normalize])

    def resolved(self, method: MethodConfig) -> "NetworkConfig":
        """Return the configuration with a value for every option. The method's exchange replaces `default`.

        A network that cannot be split keeps the exchange `default`, and is trained without an exchange.
        """
        from torchmcl import networks

        if self.custom:
            return self
        builder, exchange = networks.builder(self.name), self.exchange
        if exchange == "default" and networks.shares_trunk(self.name, self.options):
            exchange = "weight_sharing"
        if exchange == "default" and "cut" in signature(builder).parameters:
            exchange = method.build(method._placeholder_task).exchange
        options = {**defaults(builder), **self.options}
        if (size := self.image_size) is not None:
            options["image_size"] = size
        return replace(self, exchange=exchange, options=options)


@dataclass(frozen=True)
class TrainConfig:
    """The frozen configuration of a training run.

    `TrainConfig.of` reads the options of `fit` and of the command line, and `flat` returns them. `resolved` replaces
    every default with its value. Run folders and results store the resolved configuration.

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
    initial_weights: str | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        names = ("seed", "checkpoint_steps", "tensorboard", "initial_weights")
        validate_types({name: getattr(self, name) for name in names}, TrainConfig)
        if self.seed < 0 or self.checkpoint_steps < 1:
            raise UsageError(
                f"Expected seed >= 0 and checkpoint_steps >= 1, got {self.seed} and {self.checkpoint_steps}."
            )

    @classmethod
    def of(
        cls,
        method: "str | Method" = "amcl",
        network: Any = "default",
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
        recipe: str | None = None,
        norm_eps: float | None = None,
        initial_weights: Any = None,
        **options: Any,
    ) -> "TrainConfig":
        """Create the configuration from the arguments and options of `fit`. A value of None selects the default.

        The configuration contains the options of a published `recipe`, not its name. The default network and the
        default optimiser depend on the data; see `DataKind`.

        Raises:
            UsageError: If an option is unknown or has an invalid value.
        """
        kind = DataKind.of(data, task, options)
        if isinstance(network, str) and network == "default":
            network = kind.network
        if recipe is not None:
            given = {**options, "norm_eps": norm_eps, "initial_weights": initial_weights}
            given |= {"exchange": exchange, "preset": preset}
            given |= {name: None for name in ("exchange", "preset") if given[name] == "default"}
            options = with_published(recipe, method, network, data, given)
            norm_eps, initial_weights = options.pop("norm_eps"), options.pop("initial_weights")
            exchange, preset = (options.pop(name) or "default" for name in ("exchange", "preset"))
        converted = {name: name_of(options[name]) for name in ("optimizer", "schedule") if callable(options.get(name))}
        if options.get("class_weight") is not None:
            converted["class_weight"] = class_weight_text(options["class_weight"])
        if members is None and isinstance(method, str) and isinstance(network, list):
            members = len(network)
        parts = group_options({**options, **converted}, method, network, task)
        name, source = (data, DataConfig(**parts["data"])) if isinstance(data, str) else _source(data, parts["data"])
        method_config = MethodConfig.of(method, members, unit, parts["method"], task, parts["task"])
        network_config = NetworkConfig(name_of(network), exchange, preset, cut, parts["network"], norm_eps)
        settings = Recipe(
            **{**(REGRESSION if kind.continuous else {}), **recipe_defaults(network, name), **parts["recipe"]}
        )
        machine = Machine(**parts["machine"])
        transform = None if transform is None else name_of(transform)
        initial = None if initial_weights is None else str(initial_weights)
        run = (seed, checkpoint_steps, tensorboard, transform, initial)
        return cls(method_config, network_config, name, source, settings, machine, *run)

    def resolved(self) -> "TrainConfig":
        """Return the configuration with a value for every default.

        Raises:
            UsageError: If no epochs remain after a duration such as the warm-up.
        """
        recipe = self.recipe.resolved(self.data)
        method = self.method.resolved(self.data, recipe.length())
        source = replace(self.source, seed=self.seed) if self.source.seed is None else self.source
        if source.size is None and self.data.startswith("folder:"):
            source = replace(source, size=self.network.image_size)
        return replace(self, method=method, network=self.network.resolved(method), recipe=recipe, source=source)

    def flat(self) -> dict[str, Any]:
        """Return the options as a flat dictionary that `of` accepts, with values that YAML and JSON can store."""
        method, network = self.method, self.network
        options = {"method": method.name, "network": network.name, "data": self.data, "members": method.members}
        options |= {"exchange": network.exchange, "preset": network.preset, "unit": method.unit, "task": method.task}
        options |= {"norm_eps": network.norm_eps, "initial_weights": self.initial_weights}
        options |= {"cut": network.cut, "seed": self.seed, "checkpoint_steps": self.checkpoint_steps}
        options |= {"tensorboard": self.tensorboard, "transform": self.transform, **method.options, **network.options}
        options |= method.task_options
        options |= {f"data_{name}": value for name, value in asdict(self.source).items()}
        options |= {**asdict(self.recipe), **asdict(self.machine)}
        return {name: _plain(value) for name, value in options.items()}

    def identity(self) -> dict[str, Any]:
        """Return all resolved options that affect the results. Runs with equal identities are considered identical.

        Options in `WITHOUT_EFFECT`, such as `data_dir` and the options of `Machine` except `precision`, are omitted.
        """
        return comparable(self.resolved().flat())


def comparable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a run's resolved options that affect the results, without neutral values; see `identity`.

    >>> comparable({"epochs": 3, "augment": None, "task": "regression", "loss": "squared", "workers": 2})
    {'epochs': 3}
    """
    options = {name: value for name, value in options.items() if name not in WITHOUT_EFFECT}
    if options.get("task") in ("classification", "segmentation", "regression"):  # the data implies these tasks
        options["task"] = None
    if options.get("balance") == "memory":  # stored results have True
        options["balance"] = True
    return {name: value for name, value in options.items() if name not in NEUTRAL or value != NEUTRAL[name]}


def group_options(
    options: Mapping[str, Any], method: "str | Method", network: Any, task: Any = None
) -> dict[str, dict[str, Any]]:
    """Group options by the part of the configuration that defines them.

    Raises:
        UsageError: If an option is defined by no part or by several parts.

    >>> group_options({"epochs": 3, "width": 8, "beta": 0.1, "data_limit": 9}, "amcl", "resnet10")["method"]
    {'beta': 0.1}
    """
    part_of = _parts(method, network, task)
    parts: dict[str, dict[str, Any]] = {part: {} for part in ("data", "network", "method", "machine", "recipe", "task")}
    for option, value in options.items():
        if value is None:  # None selects the default in every part
            continue
        if option not in part_of:
            near = get_close_matches(option[:100], part_of, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known options: {', '.join(sorted(part_of))}."
            if owners := _accepting(option):
                hint = f"It is an option of {', '.join(owners)}."
            if option == "quiet":  # an option of the command line only
                hint = "Use verbose=False."
            about = f"the method {name_of(method)} and the network {name_of(network)}"
            raise UsageError(f"Unknown option {option} for {about}. {hint}")
        parts[part_of[option]][option.removeprefix("data_")] = value
    return parts


def _accepting(option: str) -> list[str]:
    """Return the methods and networks that accept an option."""
    from torchmcl import methods, networks

    found = [name for name in methods.names() if option in methods.options(name)]
    return found + [name for name in networks.names() if option in _options(networks.builder(name))]


def _parts(method: "str | Method", network: Any, task: Any) -> dict[str, str]:
    """Map each option to the part of the configuration that defines it."""
    from torchmcl import methods, networks, tasks

    # If the data determines the task, regression is the only one with options.
    named = task if isinstance(task, str) and not task.startswith(OWN) else "regression"
    options: dict[str, list[str]] = {
        **_fixed_options(),
        "task": list(tasks.options(named)),
        "network": _options(networks.builder(network)) if isinstance(network, str) else [],
        "method": methods.options(method) if isinstance(method, str) else list(method.options),
    }
    part_of: dict[str, str] = {}
    for part, names in options.items():
        for option in names:
            if part_of.setdefault(option, part) != part:
                owner = name_of({"method": method, "network": network, "task": named}.get(part, part))
                both = f"both the {part} {owner} and the {part_of[option]}"
                raise UsageError(f"The option {option} is defined by {both}. Rename it in the {part}.")
    excluded = {"training"} if isinstance(method, str) else {"training", "method"}  # a Method has its own options
    return {option: part for option, part in part_of.items() if part not in excluded}


def _fixed_options() -> dict[str, list[str]]:
    """Return the options that do not depend on the method or the network."""
    return {
        "training": [name for name in (*signature(TrainConfig.of).parameters, *CALL_ARGUMENTS) if name != "options"],
        "data": [f"data_{one.name}" for one in fields(DataConfig)],
        "recipe": [one.name for one in fields(Recipe)],
        "machine": [one.name for one in fields(Machine)],
    }


def reserved() -> set[str]:
    """Return the option names that methods and networks must not use."""
    return {name for names in _fixed_options().values() for name in names}


def _options(builder: Callable[..., Any]) -> list[str]:
    return [name for name in signature(builder).parameters if name not in ("classes", "dense", "cut")]


def recipe_defaults(network: Any, data: str) -> Mapping[str, Any]:
    """Return the fields of `Recipe` in which a pretrained network differs from the paper's recipe.

    Its number of epochs applies to large data sets only. A few hundred images need more epochs for as many steps.
    """
    from torchmcl import networks

    expected = networks.input_of(network) if isinstance(network, str) and not network.startswith(OWN) else None
    if expected is None:
        return {}
    return {name: value for name, value in expected.recipe.items() if name != "epochs" or data in LARGE}


def defaults(builder: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a network builder's optional arguments, except for arguments that the data determines."""
    return {
        name: one.default
        for name, one in signature(builder).parameters.items()
        if one.default is not Parameter.empty and name not in DECIDED_BY_DATA
    }


def name_of(thing: Any) -> str:
    """Return a name unchanged, or own:NAME for an object.

    >>> name_of("mlp"), name_of(dict)
    ('mlp', 'own:dict')
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, list | tuple):
        return f"{OWN}list"
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None) or type(thing).__name__
    return f"{OWN}{name}"


def class_weight_text(weights: Any) -> str:
    """Format class weights in the syntax of the command line: balanced, one number per class, or name=number.

    >>> class_weight_text([1, 2.5]), class_weight_text({"cat": 2}), class_weight_text("balanced")
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
            f"Expected class_weight to be 'balanced', one number per class, or {{class: number}}, got {weights!r}."
        ) from problem


def _plain(value: Any) -> Any:
    """Return a value that YAML and JSON can store. An object, such as a function, is stored as its name."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, str | int | float) else name_of(value)


def _source(data: "DataSet", options: Mapping[str, Any]) -> tuple[str, DataConfig]:
    """Return the name of a `DataSet` and the options that it was loaded with."""
    if options:
        raise UsageError(
            f"Cannot apply {', '.join(f'data_{name}' for name in options)} to a DataSet that is already loaded. "
            "Pass them to torchmcl.data.load, or pass the name of the data set to fit."
        )
    if data.source is None:
        return f"{OWN}{data.name}", DataConfig(validation=0.0)
    return data.name, DataConfig(**data.source)


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Return the name of the first option in which two training runs differ, or None if they are equal.

    >>> difference({"seed": 0, "epochs": 3}, {"seed": 1, "epochs": 3})
    'seed'
    """
    return next((name for name in (*first, *second) if first.get(name) != second.get(name)), None)

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from reprlib import repr as shown
from typing import Any

from torchmcl import methods, networks, tasks
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess
from torchmcl.ensemble import Ensemble, Network
from torchmcl.errors import UsageError, known_name
from torchmcl.methods import Method
from torchmcl.serialization.legacy import upgraded_options
from torchmcl.structures.rejection import Rejection
from torchmcl.structures.task import Task
from torchmcl.tasks import Classification, Segmentation

VERSION = 3  # of what a model file says of itself
READABLE = (1, 2, 3)
LARGEST = 10**6  # features, or pixels a side
RESERVED = {"name", "method", "network", "members", "classes", "exchange", "preset", "cut", "seed"}  # said elsewhere


@dataclass(frozen=True)
class ModelConfig:
    """What a model is, but for its weights: enough to build it anew.

    `method` and `network` are names, None for a `Method` or a callable of your own; `shape` and `dtype` are those of
    one example as it was read, `preprocess` what is done to it first; `dense` models answer for each pixel. `cut` is
    where an `nn.Sequential` of your own is split, `task` the name of a task where it is not the data's own. Options are
    spelled out, defaults included.
    """

    method: str | None
    members: int
    classes: tuple[str, ...]
    network: str | None
    shape: tuple[int, ...]
    preprocess: str
    dtype: str = "uint8"
    exchange: str = "default"
    preset: str = "default"
    unit: str = "image"
    dense: bool = False
    cut: int | None = None
    task: str | None = None
    method_options: dict[str, Any] = field(default_factory=dict)
    network_options: dict[str, Any] = field(default_factory=dict)
    rejection: Rejection = field(default_factory=Rejection)
    version: int = VERSION

    def __post_init__(self) -> None:
        validate_types(vars(self), ModelConfig)
        known_name("type", self.dtype, ("uint8", "float32"))
        known_name("unit", self.unit, ("image", "pixel"))
        if not self.shape or not all(1 <= size <= LARGEST for size in self.shape):
            raise UsageError(f"Expected examples of 1 to {LARGEST:,} along each axis, got {shown(self.shape)}.")
        if taken := RESERVED & {*self.method_options, *self.network_options}:
            raise UsageError(f"Expected options of the method and the network alone, got {', '.join(sorted(taken))}.")

    def build(
        self, network: Network | list[Network] | None = None, *, method: Method | None = None, seed: int = 0
    ) -> tuple[Method, Ensemble]:
        """Method and ensemble, the latter untrained; a network or method that has no name must be given again."""
        preprocess.apply(self.preprocess)  # raises for one that is not registered
        chosen = network or self.network
        if chosen is None:
            raise UsageError("Expected the network that the model was trained with, which has no name: pass network=….")
        method = method or self._method()
        if (method.members, method.classes) != (self.members, len(self.classes)):
            raise UsageError(
                f"Expected a method for {self.members} members and {len(self.classes)} classes, "
                f"got one for {method.members} and {method.classes}."
            )
        method = replace(method, unit=self.unit)
        if isinstance(chosen, list):
            chosen = [self._sized(one, method) for one in chosen]
        ensemble = Ensemble.build(
            method, chosen, exchange=self.exchange, preset=self.preset, cut=self.cut, seed=seed, **self.network_options
        )
        return method, ensemble

    def _sized(self, network: Network, method: Method) -> Network:
        """A network of a list, which if given by name must fit the shape of an example."""
        if not isinstance(network, str):
            return network
        return partial(networks.build, network, cut=method.cut, **networks.input_options(network, self.shape))

    def _method(self) -> Method:
        if self.method not in methods.names():
            name = f"{self.method!r}, which nobody registered here" if self.method else "which has no name"
            other = ", or import the file that registers it: --import FILE" if self.method else ""
            raise UsageError(f"Expected the method that the model was trained with, {name}: pass method=…{other}.")
        return methods.build(self.method, self.members, task=self._task(), **self.method_options)

    def _task(self) -> Task:
        if self.task is not None:
            return tasks.build(self.task, len(self.classes))
        return Segmentation(len(self.classes)) if self.dense else Classification(len(self.classes))

    def as_dict(self) -> dict[str, Any]:
        """In values that JSON and YAML know."""
        return {**asdict(self), "classes": list(self.classes), "shape": list(self.shape)}

    @classmethod
    def of(cls, about: dict[str, Any]) -> "ModelConfig":
        """Read what `as_dict` wrote, of this version or an earlier one.

        >>> model_config = ModelConfig("amcl", 2, ("cat", "dog"), "simple_cnn", (3, 32, 32), "gcn")
        >>> ModelConfig.of(model_config.as_dict()) == model_config
        True
        """
        if about.get("version") not in READABLE:
            readable = " and ".join(map(str, READABLE))
            raise ValueError(f"it is of version {about.get('version')}, this torchmcl reads versions {readable}")
        if about["version"] == 1:  # had no type: images were bytes, rows of a table were not
            about = {"dtype": "uint8" if len(about["shape"]) == 3 else "float32", **about}
        if about["version"] < 3:  # left options at their defaults
            options = upgraded_options(about["method"], about.get("method_options", {}))
            about = {**about, "method_options": options}
        known = {
            "classes": tuple(about["classes"]),
            "shape": tuple(about["shape"]),
            "rejection": Rejection(**about.get("rejection", {})),
            "version": VERSION,
        }
        return cls(**{**about, **known})

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from reprlib import repr as shown
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from torchmcl import methods, networks, tasks
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess
from torchmcl.ensemble import Ensemble, Network
from torchmcl.ensemble.router import RouterConfig
from torchmcl.ensemble.whitening import Whitening
from torchmcl.errors import UsageError, known_name
from torchmcl.serialization.legacy import upgraded_options
from torchmcl.structures.rejection import Rejection
from torchmcl.structures.task import Task
from torchmcl.tasks import Classification, Segmentation

VERSION = 3  # the version of the configuration in model files
MAX_SIZE = 10**6  # the maximum number of features, or of pixels along one side
# These arguments are set separately, so they are not allowed as options of a method or network.
RESERVED = {"name", "method", "network", "members", "classes", "exchange", "preset", "cut", "seed"}


@dataclass(frozen=True)
class ModelConfig:
    """The resolved configuration of a model, from which everything except its weights can be built.

    Args:
        method: name of the method, or None if it is not registered
        members: number of members
        classes: names of the classes
        network: name of the network, or None if it is not registered
        shape: shape of one example before preprocessing
        preprocess: name of the preprocessing, without whitening
        dtype: type of an example before preprocessing, uint8 or float32
        exchange: kind of exchange between members, a name in `exchange.names()`
        preset: name of the variant of the exchange
        unit: unit that is assigned to members in segmentation, image or pixel
        dense: whether the model predicts a class for each pixel
        cut: number of layers before the exchange, for an `nn.Sequential` that is not registered
        task: name of the task, or None for segmentation if `dense` is True and classification otherwise
        task_options: options of the task, including those that training and calibration set, such as units
        targets: number of target values, or 0 for tasks with classes
        method_options: options of the method, including defaults
        network_options: options of the network, including defaults
        whiten: whether the ensemble whitens its preprocessed inputs
        norm_eps: epsilon of batch normalisation, or None for PyTorch's default
        rejection: threshold and temperature for accepting predictions
        router: router that predicts the owners of an example, or None
        version: version of this format
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
    task_options: dict[str, Any] = field(default_factory=dict)
    targets: int = 0
    method_options: dict[str, Any] = field(default_factory=dict)
    network_options: dict[str, Any] = field(default_factory=dict)
    whiten: bool = False
    norm_eps: float | None = None
    rejection: Rejection = field(default_factory=Rejection)
    router: RouterConfig | None = None
    version: int = VERSION

    def __post_init__(self) -> None:
        validate_types(vars(self), ModelConfig)
        known_name("type", self.dtype, ("uint8", "float32"))
        known_name("unit", self.unit, ("image", "pixel"))
        if not self.shape or not all(1 <= size <= MAX_SIZE for size in self.shape):
            raise UsageError(f"Expected examples of size 1 to {MAX_SIZE:,} along each axis, got {shown(self.shape)}.")
        if taken := RESERVED & {*self.method_options, *self.network_options}:
            raise UsageError(f"Expected only options of the method and the network, got {', '.join(sorted(taken))}.")

    def build(
        self,
        network: Network | list[Network] | None = None,
        *,
        method: methods.Method | None = None,
        seed: int = 0,
        pretrained: bool = False,
    ) -> tuple[methods.Method, Ensemble]:
        """Build the method and the untrained ensemble.

        Args:
            network: the network or networks, if they are not registered
            method: the method, if it is not registered
            seed: seed for the initial weights
            pretrained: whether to read the weights of a pretrained network; if they are replaced, this is not needed

        Raises:
            UsageError: if an unregistered network or method is not passed, or if the method does not have the expected
                number of members and classes.
        """
        preprocess.get(self.preprocess)  # raises UsageError if the name is unknown
        network = network or self.network
        if network is None:
            raise UsageError("The model was trained with a network that is not registered. Pass it as network=….")
        method = method or self._method()
        expected, got = (self.members, len(self.classes)), (method.members, method.classes)
        if got != expected:
            raise UsageError(f"Expected a method with (members, classes) = {expected}, got {got}.")
        method = replace(method, unit=self.unit)
        if isinstance(network, list):
            network = [self._sized(part, method) for part in network]
        options = dict(self.network_options)
        if "weights" in options and not pretrained and self.network and networks.is_pretrained(self.network):
            options["weights"] = "none"
        ensemble = Ensemble.build(
            method, network, exchange=self.exchange, preset=self.preset, cut=self.cut, seed=seed, **options
        )
        if self.whiten:
            example = torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype))
            ensemble.whitening = Whitening(preprocess.get(self.preprocess)(example).shape[1:])
        if self.norm_eps is not None:
            for part in ensemble.modules():
                if isinstance(part, _BatchNorm):
                    part.eps = self.norm_eps
        return method, ensemble

    def _sized(self, network: Network, method: methods.Method) -> Network:
        """Set the input size of a network that is given by its name in a list of networks."""
        if not isinstance(network, str):
            return network
        options = networks.input_options(network, self.shape)
        return partial(networks.build, network, cut=method.composition.cut, **options)

    def _method(self) -> methods.Method:
        if self.method is None:
            raise UsageError("The model was trained with a method that is not registered. Pass it as method=….")
        if self.method not in methods.names():
            raise UsageError(
                f"The method {self.method!r} is not registered. Pass it as method=…, or import its file: --import FILE"
            )
        return methods.build(self.method, self.members, task=self._task(), **self.method_options)

    def _task(self) -> Task:
        if self.task is not None:
            return tasks.build(self.task, self.targets or len(self.classes), **self.task_options)
        return Segmentation(len(self.classes)) if self.dense else Classification(len(self.classes))

    def as_dict(self) -> dict[str, Any]:
        """Convert the configuration to values that JSON and YAML can store."""
        rejection = {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self.rejection).items()
        }
        return {**asdict(self), "classes": list(self.classes), "shape": list(self.shape), "rejection": rejection}

    @classmethod
    def of(cls, about: dict[str, Any]) -> "ModelConfig":
        """Create a configuration from the output of `as_dict`, written by this version or an earlier one.

        >>> model_config = ModelConfig("amcl", 2, ("cat", "dog"), "simple_cnn", (3, 32, 32), "gcn")
        >>> ModelConfig.of(model_config.as_dict()) == model_config
        True
        """
        if about.get("version") not in range(1, VERSION + 1):
            raise ValueError(f"it has version {about.get('version')}, but only versions 1 to {VERSION} are supported")
        if about["version"] == 1:  # version 1 did not store the type: images were uint8, and rows of a table float32
            about = {"dtype": "uint8" if len(about["shape"]) == 3 else "float32", **about}
        if about["version"] < 3:  # versions 1 and 2 did not store default options
            about = {**about, "method_options": upgraded_options(about["method"], about.get("method_options", {}))}
        about = {**about, "classes": tuple(about["classes"]), "shape": tuple(about["shape"]), "version": VERSION}
        router = None if about.get("router") is None else RouterConfig(**about["router"])
        return cls(**{**about, "rejection": Rejection(**about.get("rejection", {})), "router": router})

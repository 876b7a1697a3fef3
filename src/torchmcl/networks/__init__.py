"""The networks of single members, one file per architecture.

Each file has a function `(classes, *, …)` that returns a `Split`, a network cut into a stem and a body. Members
exchange features at the cut. A size out of range raises UsageError. The exchange itself is in `ensemble`.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from math import prod
from numbers import Integral
from typing import Any

import torch
from torch import nn

from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.registry import Registry
from torchmcl.errors import UsageError
from torchmcl.networks import libraries
from torchmcl.networks.backbone import NONE, Input
from torchmcl.networks.efficientnet_lite import efficientnet_lite0, efficientnet_lite1, efficientnet_lite2
from torchmcl.networks.fcn import fcn
from torchmcl.networks.googlenet import googlenet
from torchmcl.networks.mlp import mlp
from torchmcl.networks.mobilenet import mobilenet_v2
from torchmcl.networks.preact_resnet import preact_resnet10
from torchmcl.networks.resnet import resnet10, resnet18, resnet34
from torchmcl.networks.simple_cnn import simple_cnn
from torchmcl.networks.vgg import vgg16

Builder = Callable[..., nn.Module]
_BUILDERS: Registry[Builder] = Registry(
    "network",
    (
        *(simple_cnn, vgg16, resnet10, resnet18, resnet34, preact_resnet10, googlenet, mobilenet_v2, fcn, mlp),
        *(efficientnet_lite0, efficientnet_lite1, efficientnet_lite2),
    ),
)
NAMES = _BUILDERS.names()  # the built-in networks
PRETRAINED = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
# Networks within these limits fit in memory on any machine.
SMALL = {"width": 512, "hidden": 4096, "depth": 100, "inputs": 100_000, "channels": 1000, "classes": 100_000}

__all__ = [
    "NAMES",
    "PRETRAINED",
    "Input",
    "build",
    "builder",
    "input_of",
    "input_options",
    "names",
    "register",
    "shares_trunk",
]
__all__ += [*_BUILDERS]


def names() -> tuple[str, ...]:
    """Return the names of all networks, including registered ones."""
    return _BUILDERS.names()


def register(network: Builder) -> Builder:
    """A decorator that registers a network under the name of its function.

    Args:
        network: a function `(classes, *, …)` that returns a `Split` or another module. Its options are keyword
            arguments with defaults. An argument named `channels` or `inputs` receives the number of channels or
            features of an example, and one named `cut` receives the place where members exchange features

    Raises:
        UsageError: if another network has this name
    """
    return _BUILDERS.register(network)


def builder(name: str) -> Builder:
    """Return the function that builds the network `name`, in `names()` or such as timm:NAME (see `libraries`).

    Raises:
        UsageError: if the name is unknown
    """
    if isinstance(name, str) and libraries.is_external(name):
        return libraries.builder(name)
    return _BUILDERS.find(name)


def build(name: str, classes: int = 10, **options: Any) -> nn.Module:
    """Build a network by name.

    Args:
        name: one of `names()`
        classes: the number of outputs
        options: keyword arguments of the network's function

    Raises:
        UsageError: if the name or an option is unknown, an option is missing, or the weights do not fit in memory

    >>> build("resnet10", classes=11, width=16).features
    16
    >>> build("resnet10", depth=3)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Unknown option depth for resnet10. Available: width, channels, cut.
    """
    function = builder(name)
    parameters = {option: about for option, about in signature(function).parameters.items() if option != "classes"}
    if "cut" not in parameters:  # a network that is not split
        options.pop("cut", None)
    if unknown := ", ".join(option for option in options if option not in parameters):
        raise UsageError(f"Unknown option {unknown} for {name}. Available: {', '.join(parameters)}.")
    required = [option for option, about in parameters.items() if about.default is Parameter.empty]
    if missing := [option for option in required if option not in options]:
        raise UsageError(f"The network {name} requires {' and '.join(missing)}. Pass {missing[0]}=….")
    sizes = {"classes": classes, **options}
    if any(isinstance(sizes.get(size), Integral) and sizes[size] > limit for size, limit in SMALL.items()):
        with torch.device("meta"):  # weights without values, only to count their bytes
            weights = sum(weight.nbytes for weight in function(classes, **options).parameters())
        check_memory(f"a {name}", weights)
    return function(classes, **options)


def input_of(name: str) -> Input | None:
    """Return the images that a pretrained network expects and its recipe, or None for other networks.

    >>> input_of("efficientnet_lite0").size, input_of("resnet18")
    (224, None)
    """
    return libraries.input_of(name) if libraries.is_external(name) else getattr(builder(name), "input", None)


def is_pretrained(name: str) -> bool:
    """Return whether a network has pretrained weights; other libraries are not imported.

    >>> is_pretrained("efficientnet_lite0"), is_pretrained("timm:resnet18"), is_pretrained("resnet18")
    (True, True, False)
    """
    return libraries.is_external(name) or (name in _BUILDERS and hasattr(_BUILDERS[name], "input"))


def library_version(name: str) -> str:
    """Return the name and version of the other library that defines a network, or "" for networks of this package.

    >>> library_version("resnet18")
    ''
    """
    return libraries.version_of(name) if libraries.is_external(name) else ""


def shares_trunk(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether the members of an ensemble share the first layers of this network, unless chosen otherwise.

    >>> shares_trunk("efficientnet_lite0", {}), shares_trunk("efficientnet_lite0", {"trunk": "none"})
    (True, False)
    """
    trunk = signature(builder(name)).parameters.get("trunk")
    return trunk is not None and options.get("trunk", trunk.default) != NONE


def input_options(name: str, shape: tuple[int, ...], *, dense: bool = False) -> dict[str, Any]:
    """Return the options of a network that follow from the data.

    Args:
        name: the name of the network
        shape: the shape of an example, (channels, H, W) or (D,)
        dense: whether each pixel has a label

    Raises:
        UsageError: if the network expects images and the shape is not that of an image

    >>> input_options("resnet10", (1, 28, 28)), input_options("mlp", (1, 28, 28))
    ({'channels': 1}, {'inputs': 784})
    """
    parameters = signature(builder(name)).parameters
    if "inputs" in parameters:
        return {"inputs": prod(shape)}
    images = "channels" in parameters or input_of(name) is not None
    if images and len(shape) != 3:
        raise UsageError(f"Expected images (channels, height, width) for {name}, got examples of shape {shape}.")
    found: dict[str, Any] = {"channels": shape[0]} if "channels" in parameters else {}
    if dense and "dense" in parameters:
        found["dense"] = True
    elif dense and libraries.is_external(name):
        raise UsageError(f"The network {name} cannot predict masks. Use efficientnet_lite0 or fcn.")
    return found | (libraries.architecture_of(name) if libraries.is_external(name) else {})

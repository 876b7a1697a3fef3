from collections.abc import Callable
from inspect import Parameter, signature
from math import prod
from numbers import Integral
from typing import Any

import torch
from torch import nn

from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.registry import Registry
from torchmcl.errors import UsageError
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
    (simple_cnn, vgg16, resnet10, resnet18, resnet34, preact_resnet10, googlenet, mobilenet_v2, fcn, mlp),
)
NAMES = _BUILDERS.names()  # of this package's own
ORDINARY = {"width": 512, "depth": 100, "inputs": 100_000, "channels": 1000, "classes": 100_000}  # fits any machine

__all__ = ["NAMES", "build", "builder", "fitting", "names", "register", *_BUILDERS]


def names() -> tuple[str, ...]:
    """The names of all networks, registered ones included."""
    return _BUILDERS.names()


def register(network: Builder) -> Builder:
    """Register a network of your own, `(classes, *, …) -> Split or any module`, under the function's name.

    Its options are keyword arguments with defaults. `channels` or `inputs`, where it has one of them, is given the
    number of channels of the data or of features of an example; `cut`, where members are to exchange features.
    """
    return _BUILDERS.register(network)


def builder(name: str) -> Builder:
    """The function that builds the network of that name."""
    return _BUILDERS.find(name)


def build(name: str, classes: int = 10, **options: Any) -> nn.Module:
    """Build a network by its name, with the options its own function takes.

    >>> build("resnet10", classes=11, width=16).features
    16
    >>> build("resnet19")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected a network out of simple_cnn, vgg16, resnet10, resnet18, resnet34,
        preact_resnet10, googlenet, mobilenet_v2, fcn, mlp, got 'resnet19'. Did you mean 'resnet18'? If it is your
        own, import the file that registers it: --import FILE.
    >>> build("resnet10", depth=3)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected options of resnet10 out of width, channels, cut, got depth.
    """
    taken = {option: about for option, about in signature(builder(name)).parameters.items() if option != "classes"}
    if "cut" not in taken:  # a network that is not split
        options.pop("cut", None)
    if unknown := [option for option in options if option not in taken]:
        raise UsageError(f"Expected options of {name} out of {', '.join(taken)}, got {', '.join(unknown)}.")
    needed = [option for option, about in taken.items() if about.default is Parameter.empty]
    if missing := [option for option in needed if option not in options]:
        raise UsageError(f"Expected {' and '.join(missing)} for {name}, got none. Pass {missing[0]}=….")
    sizes = {"classes": classes, **options}
    if any(isinstance(sizes.get(size), Integral) and sizes[size] > most for size, most in ORDINARY.items()):
        with torch.device("meta"):  # weights without values, to be counted first
            weights = sum(weight.nbytes for weight in _BUILDERS[name](classes, **options).parameters())
        check_memory(f"a {name}", weights)
    return _BUILDERS[name](classes, **options)


def fitting(name: str, shape: tuple[int, ...]) -> dict[str, int]:
    """The options of a network that follow from the shape of one example, (channels, H, W) or (D,).

    >>> fitting("resnet10", (1, 28, 28)), fitting("mlp", (1, 28, 28))
    ({'channels': 1}, {'inputs': 784})
    """
    if "inputs" in signature(builder(name)).parameters:
        return {"inputs": prod(shape)}
    if "channels" not in signature(builder(name)).parameters:
        return {}
    if len(shape) != 3:
        raise UsageError(f"Expected images (channels, height, width) for {name}, got examples of shape {shape}.")
    return {"channels": shape[0]}

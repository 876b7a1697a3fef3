"""What a training is a function of, however it was asked for."""

from collections.abc import Mapping
from dataclasses import asdict
from inspect import Parameter, signature
from typing import Any

from torchmcl import methods, networks
from torchmcl.training.recipe import Recipe
from torchmcl.training.source import Source


def settled(options: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Every choice that matters to a training, defaults filled in, so that two ways to say the same are equal.

    `parts` are the options by whose they are, see `fit.sort`. Where the data is and how often a checkpoint is written
    do not matter; a method or a network of the caller's own, which has no name, is not looked into.
    """
    method, network = options["method"], options["network"]
    plain = {"exchange": "default", "preset": "default", "unit": "image", "seed": 0, "members": 5}
    source = asdict(Source(**parts["data"]))
    source.pop("dir")
    return {
        **{name: options.get(name, default) for name, default in plain.items()},
        "data": options["data"],
        **({"method": method, **defaults(methods.FAMILY[method])} if isinstance(method, str) else {}),
        **parts["method"],
        **({"network": network, **defaults(networks.builder(network))} if isinstance(network, str) else {}),
        **parts["network"],
        **asdict(Recipe(**parts["recipe"])),
        **{f"data_{name}": value for name, value in source.items()},
        "precision": parts["machine"].get("precision", "32"),
    }


def difference(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> str | None:
    """The first choice that two trainings do not share, if any.

    >>> difference({"seed": 0, "epochs": 3}, {"seed": 1, "epochs": 3})
    'seed'
    """
    return next((name for name in (*wanted, *got) if wanted.get(name) != got.get(name)), None)


def defaults(function: Any) -> dict[str, Any]:
    """The optional arguments of a function."""
    every = signature(function).parameters.values()
    return {one.name: one.default for one in every if one.default is not Parameter.empty and one.name != "classes"}

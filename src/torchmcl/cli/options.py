"""Options that several commands have, and those that methods and networks define; read without importing torch."""

import re
import sys
from argparse import SUPPRESS
from collections.abc import Container, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Union, get_type_hints

from torchmcl._utils.signatures import REQUIRED, arguments, exported, functions, parts_of

if TYPE_CHECKING:
    from torchmcl.serialization.data_config import DataConfig


def add_import(parser: Any) -> None:
    """What every command takes; `imported` reads it before options are parsed."""
    about = "a Python file or a module that registers parts of your own, imported first; repeat it for several"
    parser.add_argument("--import", type=str, default=SUPPRESS, metavar="FILE", help=about)


def add_runs(parser: Any) -> None:
    """Which runs, on which data."""
    from torchmcl.serialization.data_config import DataConfig

    parser.add_argument("runs", type=str, nargs="+", help="folders of trained runs; several are compared")
    parser.add_argument("--data", type=str | None, default=None, help="another data set; its classes must fit")
    add_fields(parser, DataConfig, "data_")
    parser.add_argument(
        "--unseen", type=str | None, default=None, help="a data set of other things, or folder:PATH, every image in it"
    )
    parser.add_argument("--unseen_classes", type=str | None, default=None, help="only these of the unseen set")


def data_config(options: dict[str, Any]) -> "DataConfig":
    """The options --data_… as one value."""
    from torchmcl.serialization.data_config import DataConfig

    return DataConfig(**{field.name: options[f"data_{field.name}"] for field in fields(DataConfig)})


def looked(options: dict[str, Any]) -> dict[str, Any]:
    """What runs are asked about."""
    names = ("data", "unseen", "unseen_classes", "limit")
    return {"source": data_config(options), **{name: options[name] for name in names}}


def add_fields(group: Any, kind: type, prefix: str = "") -> None:
    """One option for each field of a dataclass; its help is in the class's docstring."""
    about = dict(re.findall(r"^\s+(\w+): (.+)$", kind.__doc__ or "", re.MULTILINE))
    hints = get_type_hints(kind)
    for field in fields(kind):
        default = None if field.default is MISSING else field.default
        if hints[field.name] is bool:
            group.add_argument(f"--{prefix}{field.name}", action="store_true", help=about[field.name])
        else:
            group.add_argument(
                f"--{prefix}{field.name}", type=hints[field.name], default=default, help=about[field.name]
            )


def method_builders() -> dict[str, Any]:
    """The functions of all methods and their arguments; of the built-in ones read without importing torch."""
    own = {name: functions(module)[name] for name, module in exported("methods").items() if name in functions(module)}
    return {name: taken for name, taken in own.items() if {"members", "task", "k"} <= taken.keys()} | registered(
        "methods"
    )


def network_builders() -> dict[str, Any]:
    """The functions of all networks and their arguments; of the built-in ones read without importing torch."""
    return {name: functions(module)[name] for name, module in exported("networks").items()} | registered("networks")


def registered(kind: str) -> dict[str, Any]:
    """The functions that were registered as methods, networks, exchanges or tasks, and their arguments.

    Unless a module was imported that registers some, there are none, and torch is not imported to find out.
    """
    if (module := sys.modules.get(f"torchmcl.{kind}")) is None:
        return {}
    find = module.function if kind == "methods" else module.builder
    found = {name: find(name) for name in module.names()}
    return {name: arguments(one) for name, one in found.items() if not one.__module__.startswith("torchmcl.")}


def method_options(taken: Container[str] = ()) -> dict[str, tuple[Any, str]]:
    """Option -> its type, and which methods take it with which default, besides names that are `taken` already."""
    decided = ("members", "task", "groups")  # by the data, or by an option of its own
    found = options_of(method_builders(), decided)
    found["k"] = (found["k"][0], "members that take each example; 1, for cmcl 4")
    return {name: about for name, about in found.items() if name not in taken}


def network_options() -> dict[str, tuple[Any, str]]:
    """Option -> its type and default; what data and method decide is left out."""
    return options_of(network_builders(), ("classes", "channels", "inputs", "cut"))


def options_of(builders: dict[str, Any], decided: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Option -> its type, and which functions take it with which default.

    An option of the whole training is left out: `fit` refuses a method or a network that has one of these names.
    """
    from torchmcl.training.config import reserved

    found: dict[str, tuple[list[Any], list[str]]] = {}
    for name, taken in builders.items():
        for option, (kind, default) in taken.items():
            if option not in decided and option not in reserved() and default is not REQUIRED:
                kinds, takers = found.setdefault(option, ([], []))
                kinds += [part for part in parts_of(kind) if part not in kinds]
                takers.append(f"{name} {default}")
    return {
        option: (Union[*sorted(kinds, key=read_first)], ", ".join(takers).replace("%", "%%"))
        for option, (kinds, takers) in found.items()
    }


def read_first(kind: Any) -> int:
    """The order in which types of a union are tried: 1 is a whole number, 0.5 a number, anything a text."""
    return {int: 0, float: 1, str: 3}.get(kind, 2)


def one_line(problem: object) -> str:
    """What a library says over several lines, in one."""
    return " ".join(str(problem).split()).rstrip(".") + "."

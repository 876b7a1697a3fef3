"""Options shared by several commands, and the options of methods and networks, read without importing torch."""

import re
import sys
from argparse import SUPPRESS
from collections.abc import Container, Sequence
from dataclasses import fields
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Union, get_type_hints

from torchmcl._utils.signatures import REQUIRED, arguments, descriptions, exported, functions, parts_of

if TYPE_CHECKING:
    from torchmcl.serialization.data_config import DataConfig

SHORTER = {"data_skip_unreadable": ("skip_unreadable",)}  # other names of flags


def add_option(parser: Any, name: str, about: str, kind: Any = str, default: Any = None) -> None:
    """Add the option --name: a flag if `kind` is bool, otherwise a value, which can be None if there is no default."""
    if kind is bool:
        parser.add_argument(*(f"--{each}" for each in (name, *SHORTER.get(name, ()))), action="store_true", help=about)
    else:
        parser.add_argument(f"--{name}", type=kind | None if default is None else kind, default=default, help=about)


def add_import(parser: Any) -> None:
    """Add --import, which every command accepts. `entry.run_imports` handles it before the options are parsed."""
    about = "Python file or module that registers your own components, imported first; may be repeated"
    parser.add_argument("--import", type=str, default=SUPPRESS, metavar="FILE", help=about)


def add_runs(parser: Any, *, limit: bool = False) -> None:
    """Add the arguments for the runs and the evaluation data, and optionally a limit on the number of examples."""
    from torchmcl.serialization.data_config import DataConfig

    parser.add_argument("runs", type=str, nargs="+", help="folders of trained runs; several runs are compared")
    add_option(parser, "data", "data set to evaluate on, with the run's classes; by default, the run's own test set")
    add_fields(parser, DataConfig, "data_")
    add_option(parser, "unseen", "data set with unseen classes, or folder:PATH for all images in a folder")
    add_option(parser, "unseen_classes", "classes of the unseen data set to use, separated by commas; by default, all")
    if limit:
        add_option(parser, "limit", "maximum number of examples to evaluate per data set; by default, all", int)


def add_query(parser: Any) -> None:
    """Add the options for querying only some members, which need a router (`torchmcl route`)."""
    add_option(parser, "query", "number of most likely owners to query per example; by default, all members", int)
    about = "largest number of members to query if all answer 'not mine'; by default, twice the value of --query"
    add_option(parser, "budget", about, int)


def data_config(options: dict[str, Any]) -> "DataConfig":
    """Collect the options --data_… in a `DataConfig`."""
    from torchmcl.serialization.data_config import DataConfig

    return DataConfig(**{field.name: options[f"data_{field.name}"] for field in fields(DataConfig)})


def evaluation_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for `run_evaluation`."""
    names = ("data", "unseen", "unseen_classes", "limit")
    return {"source": data_config(options), **{name: options[name] for name in names}}


def add_fields(group: Any, kind: type, prefix: str = "", *, later: bool = False) -> None:
    """Add one option per field of a dataclass, with the help text from the `Args:` of its docstring.

    With `later`, options that are not given stay None, because their defaults depend on other options.
    """
    about = descriptions(getdoc(kind))
    hints = get_type_hints(kind)
    for field in fields(kind):
        text, default = about[field.name], field.default
        if later and default is not None and hints[field.name] is not bool:
            text, default = f"{text}; by default {default}", None
        add_option(group, prefix + field.name, text, hints[field.name], default)


def method_builders() -> dict[str, Any]:
    """Return the functions of all methods with their arguments, without importing torch for the built-in ones."""
    modules = exported("methods")
    found = {name: functions(module)[name] for name, module in modules.items() if name in functions(module)}
    own = {name: accepted for name, accepted in found.items() if {"members", "task", "k"} <= accepted.keys()}
    return own | registered("methods")


def network_builders() -> dict[str, Any]:
    """Return the functions of all networks with their arguments, without importing torch for the built-in ones."""
    found = {
        name: functions(module)[name] for name, module in exported("networks").items() if name in functions(module)
    }
    return {name: accepted for name, accepted in found.items() if "classes" in accepted} | registered("networks")


def registered(kind: str) -> dict[str, Any]:
    """Return the functions registered as methods, networks, exchanges or tasks, with their arguments.

    If no imported module registers a function, the result is empty, and torch is not imported.
    """
    if (module := sys.modules.get(f"torchmcl.{kind}")) is None:
        return {}
    find = module.function if kind == "methods" else module.builder
    found = {name: find(name) for name in module.names()}
    return {name: arguments(one) for name, one in found.items() if not one.__module__.startswith("torchmcl.")}


def method_options(taken: Container[str] = ()) -> dict[str, tuple[Any, str]]:
    """Return the type and help text of each method option whose name is not in `taken`."""
    found = options_of(method_builders(), ("members", "task", "groups"))  # set by the data or by another option
    found["k"] = (found["k"][0], "number of members that take each example; cmcl: 4, other methods: 1")
    return {name: about for name, about in found.items() if name not in taken}


def task_options() -> dict[str, tuple[Any, str]]:
    """Return the type and help text of each option of a task."""
    return options_of(functions("tasks.__init__") | registered("tasks"), ("classes", "targets", "size"))


def network_options() -> dict[str, tuple[Any, str]]:
    """Return the type and help text of each network option that neither the data nor the method determines."""
    return options_of(network_builders(), ("classes", "channels", "inputs", "dense", "cut"))


def options_of(builders: dict[str, Any], excluded: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Return the type and the help text of each option: a description, and the functions that accept it with defaults.

    Training options are left out, because `fit` rejects a method or a network with an option of the same name.
    """
    from torchmcl.training.config import reserved

    found: dict[str, tuple[list[Any], dict[str, list[str]]]] = {}
    for name, accepted in builders.items():
        for option, (kind, default, about) in accepted.items():
            if option not in excluded and option not in reserved() and default is not REQUIRED:
                kinds, texts = found.setdefault(option, ([], {}))
                kinds += [part for part in parts_of(kind) if part not in kinds]
                plain = re.sub(r"; see `[\w.]+`|`| ?\[I\]|This option is not in the paper\.", "", about).strip(" .")
                text = plain or next(iter(texts), "")  # a function without a description of its own
                texts.setdefault(text, []).append(
                    f"{name}: {'off' if default is None or default is False else default}"
                )
    return {
        option: (
            Union[*sorted(kinds, key=parsing_order)],
            "; ".join(
                f"{text[:1].lower()}{text[1:]} ({', '.join(defaults)})".lstrip() for text, defaults in texts.items()
            ),
        )
        for option, (kinds, texts) in found.items()
    }


def parsing_order(kind: Any) -> int:
    """Return the position of a type in a union: int is tried before float, and str last."""
    return {int: 0, float: 1, str: 3}.get(kind, 2)


def one_line(problem: object) -> str:
    """Join the lines of an error message and end it with a period."""
    return " ".join(str(problem).split()).rstrip(".") + "."

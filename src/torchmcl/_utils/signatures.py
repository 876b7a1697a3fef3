"""Function signatures, read from source code so that help texts can list options without importing torch."""

import ast
import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

PACKAGE = Path(__file__).parent.parent
REQUIRED = object()  # used in place of a missing default
PLAIN = (bool, int, float, str, NoneType)  # types that a command line can parse


class Argument(NamedTuple):
    """An argument of a function: its type, its default or REQUIRED, and its description in the docstring."""

    kind: Any
    default: Any
    about: str = ""


@cache
def functions(module: str) -> dict[str, dict[str, Argument]]:
    """Return the arguments of each public function in a module of this package, such as "methods.amcl".

    Annotations can use built-in types, None, Literal and Duration.

    >>> functions("methods.relaxed")["relaxed"]["eps"]
    Argument(kind=<class 'float'>, default=0.05, about='The weight that each winner gives up.')
    """
    nodes = [node for node in _tree(module).body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    return {node.name: _arguments(node.args, descriptions(ast.get_docstring(node))) for node in nodes}


def arguments(function: Callable[..., Any]) -> dict[str, Argument]:
    """Return the arguments of an imported function; without an annotation, the default determines the type.

    >>> def method(members, *, k: int = 1, sharpness=0.5): ...
    >>> list(arguments(method).values())[1:]
    [Argument(kind=<class 'int'>, default=1, about=''), Argument(kind=<class 'float'>, default=0.5, about='')]
    """
    try:
        hints = get_type_hints(function)
    except Exception:  # annotations can contain anything
        hints = {}
    result, about = {}, descriptions(inspect.getdoc(function))
    for name, one in inspect.signature(function).parameters.items():
        default = REQUIRED if one.default is one.empty else one.default
        kind = hints.get(name, Any if default is REQUIRED or default is None else type(default))
        plain = all(part in PLAIN or get_origin(part) is Literal for part in parts_of(kind))
        result[name] = Argument(kind if plain else Any, default, about.get(name, ""))
    return result


def descriptions(docstring: str | None) -> dict[str, str]:
    """Return the descriptions of the arguments in a docstring.

    >>> descriptions("Add.\\n\\nArgs:\\n    a: One\\n        number.\\n    b: Another.\\n")
    {'a': 'One number.', 'b': 'Another.'}
    """
    section = re.search(r"^Args:\n((?:    .*\n?)+)", docstring or "", re.MULTILINE)
    found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def parts_of(kind: Any) -> tuple[Any, ...]:
    """Return the types in a union, or a tuple with the type itself.

    >>> parts_of(int | str), parts_of(float)
    ((<class 'int'>, <class 'str'>), (<class 'float'>,))
    """
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def exported(package: str) -> dict[str, str]:
    """Return the names that a subpackage imports from its own modules, mapped to these modules.

    >>> exported("networks")["resnet18"]
    'networks.resnet'
    """
    own = f"{PACKAGE.name}.{package}."
    return {
        alias.name: node.module.removeprefix(f"{PACKAGE.name}.")
        for node in _tree(f"{package}.__init__").body
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(own)
        for alias in node.names
    }


def constant(module: str, name: str) -> Any:
    """Return the literal that a module of this package assigns to a name.

    >>> constant("ensemble.feature_fusion", "PRESETS")
    ('default', 'paper_count', 'light', 'bam', 'cbam')
    """
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise LookupError(f"{module} assigns no literal to {name}")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))


def _arguments(given: ast.arguments, about: dict[str, str]) -> dict[str, Argument]:
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    pairs = zip([*plain, *given.kwonlyargs], [*defaults, *given.kw_defaults], strict=True)
    return {
        one.arg: Argument(
            _kind(one.annotation), REQUIRED if value is None else ast.literal_eval(value), about.get(one.arg, "")
        )
        for one, value in pairs
    }


def _kind(annotation: ast.expr | None) -> Any:
    names = {"int": int, "float": float, "str": str, "bool": bool, "Literal": Literal, "Duration": int | str}
    try:
        # `eval` is safe, because the text is part of this package and only these names are accessible.
        return eval(ast.unparse(annotation), {"__builtins__": {}}, names) if annotation is not None else Any
    except NameError:
        return Any

"""Type checks for options from Python, YAML or a command line."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isfinite
from numbers import Integral, Real
from reprlib import repr as shown
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torchmcl.errors import UsageError

OWN = "own:"  # the prefix, in a stored configuration, for the name of an object that the user passed
_TEXTS = {int: "an integer", float: "a finite number", bool: "true or false", str: "a string", NoneType: "None"}


def validate_types(given: Mapping[str, Any], of: Callable[..., Any]) -> None:
    """Raise UsageError if a value does not match the annotation of the parameter or field of the same name in `of`.

    >>> def method(k: int, beta: float | None = None): ...
    >>> validate_types({"k": 1, "beta": 2}, method)
    >>> validate_types({"k": "one"}, method)
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected an integer for k, got 'one'.
    """
    hints = type_hints(of)
    for name, value in given.items():
        if name in hints and not _matches(value, hints[name]):
            raise UsageError(f"Expected {_described(hints[name])} for {name}, got {shown(value)}.")


@lru_cache(maxsize=1024)
def type_hints(of: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a function or class, which Python evaluates again at each request."""
    return get_type_hints(of)


def plain_number(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, which YAML and JSON can store; return other values unchanged."""
    numpy = sys.modules.get("numpy")  # help texts are shown without importing NumPy
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def plain_fields(configuration: Any) -> None:
    """Convert NumPy scalars in the fields of a frozen dataclass to Python numbers; call it in `__post_init__`."""
    for name, value in vars(configuration).items():
        object.__setattr__(configuration, name, plain_number(value))


def _matches(value: Any, kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_matches(value, each) for each in parts)
    if origin is Literal:
        return isinstance(value, str | int) and str(value) in parts
    if origin is tuple and parts[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_matches(each, parts[0]) for each in value)
    if origin is tuple:
        return isinstance(value, tuple | list) and len(value) == len(parts) and all(map(_matches, value, parts))
    if origin in (list, Sequence):
        return (
            isinstance(value, origin) and not isinstance(value, str) and all(_matches(each, parts[0]) for each in value)
        )
    if isinstance(origin, type):
        return isinstance(value, origin)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**63
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _finite(value)
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def _finite(value: Real) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _described(kind: Any) -> str:
    """Describe a type in words.

    >>> _described(int | None), _described(Literal["sgd", "adam"])
    ('an integer or None', 'one of sgd, adam')
    """
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_described(each) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return _TEXTS.get(kind, getattr(kind, "__name__", str(kind)))

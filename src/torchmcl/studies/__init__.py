"""The paper's tables and figures, and more: each study a file, runs in a store, tables from what is stored."""

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from reprlib import repr as shown
from types import ModuleType
from typing import Any

from torchmcl._utils import imports
from torchmcl._utils.registry import Registry
from torchmcl.errors import TorchmclError, UsageError, known_name
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Study
from torchmcl.studies.tables import Table

NAMES = (  # of this package's own
    "confidence",
    "ablation",
    "exchange",
    "networks",
    "non_mcl",
    "segmentation",
    "penalties",
    "overlap",
    "size",
    "auxiliary",
    "assignment_flow",
    "grad_cam",
    "leaderboard",
)
_REGISTERED: Registry[Any] = Registry("study")


def names() -> tuple[str, ...]:
    """The names of all studies, registered ones included."""
    return (*NAMES, *_REGISTERED.names())


def register(study: Any) -> Any:
    """Register a study of your own under its name: a class with the functions of a study's file, as a decorator.

    `runs(scale)` returns a list of `Spec`, `table(results)` a `Table`, and `figure(results)`, if there is one, a
    matplotlib figure. They are static: none takes `self`. The first line of the docstring is the title.
    """
    name = study.__name__
    if missing := [part for part in ("runs", "table") if not callable(getattr(study, part, None))]:
        raise UsageError(
            f"Expected runs(scale) and table(results) in the study {name}, found no {' and no '.join(missing)}. "
            "Define both; docs/studies.md shows how."
        )
    if name in NAMES:
        raise UsageError(f"The name {name!r} is taken by another study. Rename it.")
    return _REGISTERED.register(study)


def load(name: str) -> Study:
    """A study by its name: `runs`, `table` and, where it has one, `figure` of its file, under its first line.

    >>> load("ablation").title
    'What auxiliary class, memory and fusion contribute (table 1)'
    """
    known_name("study", name, names(), register=True)
    own = _REGISTERED.get(name)
    found = own or import_module(f"torchmcl.studies.definitions.{name}")
    title = ((found.__doc__ or "").strip() or name).splitlines()[0].rstrip(".")
    figure = getattr(found, "figure", None)
    if own is None:
        return Study(name, title, found.runs, found.table, figure)
    place = os.path.relpath(str(found.__file__)) if isinstance(found, ModuleType) else ""
    which = f"{name} ({place})" if place else name
    runs = _checked(found.runs, f"runs of the study {which}", "a list of Spec", _are_specs)
    table = _checked(found.table, f"table of the study {which}", "a Table", lambda found: isinstance(found, Table))
    if figure is not None:
        figure = _checked(figure, f"figure of the study {which}", "a matplotlib figure or None", _is_figure)
    return Study(name, title, runs, table, figure, place)


def load_file(path: str) -> Study:
    """A study in a Python file of your own, which is imported and registered under the file's name."""
    return load(register(imports.load(path)).__name__)


def _checked(function: Callable[..., Any], name: str, what: str, fits: Callable[[Any], bool]) -> Callable[..., Any]:
    """The same function, which raises UsageError if it fails or returns something else than `what`."""

    @wraps(function)
    def checked(*given: Any) -> Any:
        try:
            found = function(*given)
        except TorchmclError:
            raise
        except Exception as problem:
            raise UsageError(
                f"Expected {name} to return {what}, got {type(problem).__name__}: "
                f"{str(problem).rstrip('.')}. Show where with --debug."
            ) from problem
        if not fits(found):
            raise UsageError(f"Expected {name} to return {what}, got {shown(found)}. See docs/studies.md.")
        return found

    return checked


def _is_figure(found: Any) -> bool:
    return found is None or callable(getattr(found, "savefig", None))


def _are_specs(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, Spec) for one in found)

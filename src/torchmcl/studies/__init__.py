"""The studies that reproduce the paper's tables and figures: their registry, runs, stored results and tables.

Each study is one file in `definitions`. See `training` for training, and `analysis` for figures of single runs.
"""

import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from reprlib import repr as short_repr
from types import ModuleType
from typing import Any

from torchmcl._utils import imports
from torchmcl._utils.registry import Registry
from torchmcl.errors import TorchmclError, UsageError, known_name
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import Results, Study
from torchmcl.studies.tables import Table

__all__ = ["Results", "Scale", "Spec", "Study", "Table", "load", "load_file", "names", "register"]

NAMES = (  # the built-in studies
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
    "pretrained",
    "pretrained_masks",
    "fine_tuning",
    "from_scratch",
    "unseen",
    "unseen_data",
    "selective",
    "data_size",
    "sensitivity",
    "balanced",
    "balanced_masks",
    "sparse",
    "toy_regression",
    "tables_regression",
)
_REGISTERED: Registry[Any] = Registry("study", reserved=NAMES)


def names() -> tuple[str, ...]:
    """Return the names of all studies, including registered ones."""
    return (*NAMES, *_REGISTERED.names())


def register(study: Any) -> Any:
    """Register a study under the name of its class or module; this function can be used as a decorator.

    Args:
        study: a class or module with the functions `runs(scale)` (returns a list of `Spec`), `table(results)` (returns
            a `Table`) and, optionally, `figure(results)` (returns a matplotlib figure or None). In a class, the
            functions are static methods. The first line of the study's docstring is its title.

    Returns:
        The study itself.

    Raises:
        UsageError: if `runs` or `table` is missing, or if the name is taken by another study.
    """
    name = study.__name__
    if missing := [part for part in ("runs", "table") if not callable(getattr(study, part, None))]:
        raise UsageError(
            f"The study {name} does not define {' and '.join(missing)}. "
            "Define runs(scale) and table(results); see docs/studies.md."
        )
    return _REGISTERED.register(study)


def load(name: str) -> Study:
    """Return a study by its name.

    >>> load("ablation").title
    'Contribution of the auxiliary class, the memory and feature fusion (table 1)'
    """
    known_name("study", name, names(), register=True)
    own = _REGISTERED.get(name)
    definition = own or import_module(f"torchmcl.studies.definitions.{name}")
    title = ((definition.__doc__ or "").strip() or name).splitlines()[0].rstrip(".")
    figure = getattr(definition, "figure", None)
    if own is None:
        return Study(name, title, definition.runs, definition.table, figure)
    path = os.path.relpath(str(definition.__file__)) if isinstance(definition, ModuleType) else ""
    where = f"of the study {name} ({path})" if path else f"of the study {name}"
    runs = _checked(definition.runs, f"runs {where}", "a list of Spec", _are_specs)
    table = _checked(definition.table, f"table {where}", "a Table", lambda value: isinstance(value, Table))
    if figure is not None:
        figure = _checked(figure, f"figure {where}", "a matplotlib figure or None", _is_figure)
    return Study(name, title, runs, table, figure, path)


def load_file(path: str) -> Study:
    """Import a Python file that defines a study, register the study under the file's name and return the study."""
    return load(register(imports.load(path)).__name__)


def _checked(
    function: Callable[..., Any], name: str, expected: str, is_valid: Callable[[Any], bool]
) -> Callable[..., Any]:
    """Wrap `function` so that an invalid result, or any error other than a TorchmclError, raises UsageError."""

    @wraps(function)
    def checked(*args: Any) -> Any:
        try:
            result = function(*args)
        except TorchmclError:
            raise
        except Exception as problem:
            reason = f"{type(problem).__name__}: {str(problem).rstrip('.')}"
            raise UsageError(f"Error in {name}: {reason}. Run again with --debug to see the traceback.") from problem
        if not is_valid(result):
            raise UsageError(f"Expected {name} to return {expected}, got {short_repr(result)}. See docs/studies.md.")
        return result

    return checked


def _is_figure(value: Any) -> bool:
    return value is None or callable(getattr(value, "savefig", None))


def _are_specs(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Spec) for one in value)

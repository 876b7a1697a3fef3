"""Specialist ensembles: networks trained together, each of which specialises in a part of the data."""

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torchmcl.errors import DamagedFileError, DiskFullError, DivergedError, LostProcessError, TorchmclError, UsageError

if TYPE_CHECKING:
    from torchmcl import assignment, data, ensemble, functional, methods, metrics, networks, objectives, tasks, testing
    from torchmcl.assignment import Memory
    from torchmcl.ensemble import Ensemble
    from torchmcl.inference import Specialists
    from torchmcl.methods import Composition, Method
    from torchmcl.objectives import Objective, Phases, run_dataset_passes
    from torchmcl.sklearn import SpecialistClassifier, SpecialistRegressor
    from torchmcl.structures import EnsembleOutput, Outcome, Split, State, Task
    from torchmcl.tasks import Classification, Regression, Segmentation
    from torchmcl.training.fitting import fit

__version__ = "0.2.0"

# Without a handler, Python would print warnings in programs that do not configure logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# The modules in which a public name is looked up, in this order.
_LAYERS = ("structures", "assignment", "objectives", "tasks", "methods", "ensemble", "inference", "training", "sklearn")

__all__ = [
    "Classification",
    "Composition",
    "DamagedFileError",
    "DiskFullError",
    "DivergedError",
    "Ensemble",
    "EnsembleOutput",
    "LostProcessError",
    "Memory",
    "Method",
    "Objective",
    "Outcome",
    "Phases",
    "Regression",
    "Segmentation",
    "SpecialistClassifier",
    "SpecialistRegressor",
    "Specialists",
    "Split",
    "State",
    "Task",
    "TorchmclError",
    "UsageError",
    "assignment",
    "data",
    "ensemble",
    "fit",
    "functional",
    "methods",
    "metrics",
    "networks",
    "objectives",
    "run_dataset_passes",
    "tasks",
    "testing",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use, because importing torch takes seconds and help texts do not need torch."""
    if name not in __all__:
        raise AttributeError(f"module 'torchmcl' has no attribute {name!r}")
    if find_spec(f"torchmcl.{name}") is not None:
        return import_module(f"torchmcl.{name}")
    modules = (import_module(f"torchmcl.{module}") for module in _LAYERS)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

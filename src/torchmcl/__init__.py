"""Specialist ensembles: networks that each learn their own part of the data and know what is not theirs."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchmcl.errors import (
    DamagedFileError,
    DiskFullError,
    DivergedError,
    LostProcessError,
    TorchmclError,
    UsageError,
)

if TYPE_CHECKING:
    from torchmcl import assignment, combine, costs, data, exchange, joint, methods, metrics, networks, tasks, testing
    from torchmcl.ensemble import Ensemble
    from torchmcl.estimator import SpecialistClassifier
    from torchmcl.memory import Memory
    from torchmcl.methods import Composition, Method
    from torchmcl.objective import Objective, Outcome, Phases
    from torchmcl.opinions import Opinions
    from torchmcl.predictor import Specialists
    from torchmcl.split import Split
    from torchmcl.state import State
    from torchmcl.surveys import survey
    from torchmcl.tasks import Classification, Segmentation, Task
    from torchmcl.training.fitting import fit

__version__ = "0.1.0.dev0"

# A program that does not configure logging sees no records; without this, Python would print warnings.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Imported when they are first used: torch takes seconds, and a help text does without it.
_MODULES = (
    *("assignment", "combine", "costs", "data", "exchange", "joint", "methods", "metrics", "networks", "tasks"),
    "testing",
)
_PLACES = {
    "Classification": "tasks",
    "Composition": "methods",
    "Ensemble": "ensemble",
    "Memory": "memory",
    "Method": "methods",
    "Objective": "objective",
    "Opinions": "opinions",
    "Outcome": "objective",
    "Phases": "objective",
    "SpecialistClassifier": "estimator",
    "Specialists": "predictor",
    "Segmentation": "tasks",
    "Split": "split",
    "State": "state",
    "Task": "tasks",
    "fit": "training.fitting",
    "survey": "surveys",
}

__all__ = [
    "Classification",
    "Composition",
    "DamagedFileError",
    "DiskFullError",
    "DivergedError",
    "Ensemble",
    "LostProcessError",
    "Memory",
    "Method",
    "Objective",
    "Opinions",
    "Outcome",
    "Phases",
    "Segmentation",
    "SpecialistClassifier",
    "Specialists",
    "Split",
    "State",
    "Task",
    "TorchmclError",
    "UsageError",
    "assignment",
    "combine",
    "costs",
    "data",
    "exchange",
    "fit",
    "joint",
    "methods",
    "metrics",
    "networks",
    "survey",
    "tasks",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"torchmcl.{name}")
    if name in _PLACES:
        return getattr(import_module(f"torchmcl.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'torchmcl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

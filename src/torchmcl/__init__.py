"""Specialist ensembles: networks that each learn their own part of the data and know what is not theirs."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchmcl.errors import DamagedFileError, DiskFullError, DivergedError, LostProcessError, TorchmclError, UsageError

if TYPE_CHECKING:
    from torchmcl import assignment, data, ensemble, methods, metrics, networks, objectives, tasks, testing
    from torchmcl.assignment import Memory
    from torchmcl.ensemble import Ensemble
    from torchmcl.inference import Specialists
    from torchmcl.methods import Composition, Method
    from torchmcl.objectives import Objective, Phases, run_dataset_passes
    from torchmcl.sklearn import SpecialistClassifier
    from torchmcl.structures import EnsembleOutput, Outcome, Split, State, Task
    from torchmcl.tasks import Classification, Segmentation
    from torchmcl.training.fitting import fit

__version__ = "0.2.0"

# A program that does not configure logging sees no records; without this, Python would print warnings.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Imported when they are first used: torch takes seconds, and a help text does without it.
_PLACES = {
    "assignment": ("Memory",),
    "data": (),
    "ensemble": ("Ensemble",),
    "inference": ("Specialists",),
    "methods": ("Composition", "Method"),
    "metrics": (),
    "networks": (),
    "objectives": ("Objective", "Phases", "run_dataset_passes"),
    "sklearn": ("SpecialistClassifier",),
    "structures": ("EnsembleOutput", "Outcome", "Split", "State", "Task"),
    "tasks": ("Classification", "Segmentation"),
    "testing": (),
    "training.fitting": ("fit",),
}

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
    "Segmentation",
    "SpecialistClassifier",
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
    "methods",
    "metrics",
    "networks",
    "objectives",
    "run_dataset_passes",
    "tasks",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'torchmcl' has no attribute {name!r}")
    if name in _PLACES:
        return import_module(f"torchmcl.{name}")
    return getattr(import_module(f"torchmcl.{next(place for place, names in _PLACES.items() if name in names)}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

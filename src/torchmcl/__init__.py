"""Specialist ensembles: networks that each learn their own part of the data and know what is not theirs."""

from importlib import import_module
from typing import Any

from torchmcl import assignment, combine, costs, joint, methods, networks
from torchmcl.ensemble import Ensemble
from torchmcl.errors import UsageError
from torchmcl.memory import Memory
from torchmcl.methods import Method
from torchmcl.objective import Objective, Outcome, Phases
from torchmcl.opinions import Opinions
from torchmcl.split import Split
from torchmcl.state import State
from torchmcl.surveys import survey

__version__ = "0.1.0.dev0"

__all__ = [
    "Ensemble",
    "Memory",
    "Method",
    "Objective",
    "Opinions",
    "Outcome",
    "Phases",
    "SpecialistClassifier",
    "Split",
    "State",
    "UsageError",
    "assignment",
    "combine",
    "costs",
    "joint",
    "methods",
    "metrics",
    "networks",
    "survey",
    "testing",
]


def __getattr__(name: str) -> Any:
    # What takes long to import is imported when it is first used.
    if name in ("metrics", "testing"):
        return import_module(f"torchmcl.{name}")
    if name == "SpecialistClassifier":
        return import_module("torchmcl.estimator").SpecialistClassifier
    raise AttributeError(f"module 'torchmcl' has no attribute {name!r}")

"""The paper's tables and figures, and more: each study a file, runs in a store, tables from what is stored."""

from importlib import import_module

from torchmcl.errors import known_name
from torchmcl.studies.study import Study

NAMES = (
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


def load(name: str) -> Study:
    """A study by its name: `runs`, `table` and, where it has one, `figure` of its file, under its first line.

    >>> load("ablation").title
    'What auxiliary class, memory and fusion contribute (table 1)'
    """
    known_name("study", name, NAMES)
    module = import_module(f"torchmcl.studies.{name}")
    title = (module.__doc__ or name).splitlines()[0].rstrip(".")
    return Study(name, title, module.runs, module.table, getattr(module, "figure", None))

"""Objectives: the loss that trains an ensemble, composed of a task, costs and an assignment.

Leave costs, joint costs, phases, and the passes over the training set that some objectives need before an epoch. Rules
that choose members belong to `assignment`, named compositions to `methods`.
"""

from torchmcl.objectives.dataset_pass import Held, Survey, Table, ToTeacher, evaluating, outputs, survey
from torchmcl.objectives.objective import Objective, PerPixel, Phases, memory_of, phase_of, settles_after, task_of

__all__ = [
    "Held",
    "Objective",
    "PerPixel",
    "Phases",
    "Survey",
    "Table",
    "ToTeacher",
    "evaluating",
    "memory_of",
    "outputs",
    "phase_of",
    "settles_after",
    "survey",
    "task_of",
]

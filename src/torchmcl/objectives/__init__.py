"""Objectives: the losses that train an ensemble, each composed of a task, costs and an assignment.

This package contains costs, joint costs, phases, and the passes over the training set that some objectives need before
an epoch. Assignment rules are in `assignment`, and named compositions are in `methods`.
"""

from torchmcl.objectives.dataset_pass import (
    DatasetPass,
    ExampleBuffer,
    FixedAssignment,
    ToTeacher,
    evaluating,
    outputs,
    run_dataset_passes,
)
from torchmcl.objectives.objective import Objective, PerPixel, Phases, memory_of, phase_of, schedule_end, task_of

__all__ = [
    "DatasetPass",
    "ExampleBuffer",
    "FixedAssignment",
    "Objective",
    "PerPixel",
    "Phases",
    "ToTeacher",
    "evaluating",
    "memory_of",
    "outputs",
    "phase_of",
    "run_dataset_passes",
    "schedule_end",
    "task_of",
]

"""Tasks: what is predicted, one value for everything that depends on it.

A task has the per-example loss, the check of targets, the number of outputs, the combiner, the metrics with the one
that is monitored, and the group that a memory counts. An integer stands for `Classification` with so many classes.
"""

from collections.abc import Callable
from typing import Any

from torchmcl._utils.registry import Registry
from torchmcl.errors import UsageError
from torchmcl.structures.task import Cost, EvaluationBatch, Task
from torchmcl.tasks.classification import Classification
from torchmcl.tasks.labels import MOST, Labels
from torchmcl.tasks.segmentation import Segmentation

__all__ = [
    "LABELS",
    "Classification",
    "EvaluationBatch",
    "Labels",
    "Segmentation",
    "Task",
    "as_task",
    "build",
    "builder",
    "names",
    "register",
    "with_loss",
]

LABELS = Classification(MOST)  # of a plain cost: labels, as many as there are outputs


def as_task(task: "Task | int") -> Task:
    """A task, or a number of classes for `Classification`.

    >>> as_task(10)
    Classification(classes=10)
    """
    if not isinstance(task, Task):
        return Classification(task)
    if not isinstance(getattr(task, "outputs", None), int):
        raise UsageError(f"Expected the number of outputs of {task.name}, got none. Give the task a field outputs.")
    return task


def with_loss(cost: Cost | Task) -> tuple[Task, Cost]:
    """A task and its loss; a plain cost is one of labels."""
    return (cost, cost.loss) if isinstance(cost, Task) else (LABELS, cost)


TaskBuilder = Callable[..., Task]
_TASKS: Registry[TaskBuilder] = Registry("task")


def classification(classes: int, **options: Any) -> Classification:
    """One class per example."""
    return Classification(classes, **options)


def segmentation(classes: int, **options: Any) -> Segmentation:
    """One class per pixel."""
    return Segmentation(classes, **options)


_TASKS.register(classification)
_TASKS.register(segmentation)


def names() -> tuple[str, ...]:
    """The names of all tasks, registered ones included."""
    return _TASKS.names()


def register(task: TaskBuilder) -> TaskBuilder:
    """Register a task of your own under the function's or class's name: `(classes) -> Task`."""
    return _TASKS.register(task)


def builder(name: str) -> TaskBuilder:
    """The function that builds the task of that name."""
    return _TASKS.find(name)


def build(name: str, classes: int) -> Task:
    """A task by its name, for so many classes.

    >>> build("classification", 3).outputs
    3
    """
    try:
        built = builder(name)(classes)
    except TypeError as problem:
        raise UsageError(f"Expected the task {name} to be built from a number of classes, got: {problem}.") from problem
    if not isinstance(built, Task):
        raise UsageError(f"Expected the task {name} to be a Task, got {type(built).__name__}. Return a Task.")
    return built

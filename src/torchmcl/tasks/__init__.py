"""Tasks: immutable descriptions of prediction problems.

A task defines the loss per example, the validation of targets, the number of outputs, the combiner, the metrics and the
group under which a memory counts an example. An integer in place of a task is the number of classes of a
`Classification`.
"""

from collections.abc import Callable
from typing import Any

from torchmcl._utils.registry import Registry
from torchmcl.errors import UsageError
from torchmcl.structures.task import Cost, EvaluationBatch, Task
from torchmcl.tasks.classification import Classification
from torchmcl.tasks.labels import MAX_CLASSES, Labels
from torchmcl.tasks.regression import Regression
from torchmcl.tasks.segmentation import Segmentation

__all__ = [
    "LABELS",
    "Classification",
    "EvaluationBatch",
    "Labels",
    "Regression",
    "Segmentation",
    "Task",
    "as_task",
    "build",
    "builder",
    "names",
    "register",
    "with_loss",
]

LABELS = Classification(MAX_CLASSES)  # the task used with a plain cost; each output is a class


def as_task(task: "Task | int") -> Task:
    """Return a task unchanged, or a `Classification` for an integer; raise UsageError if a task has no `outputs`.

    >>> as_task(10)
    Classification(classes=10)
    """
    if not isinstance(task, Task):
        return Classification(task)
    if not isinstance(getattr(task, "outputs", None), int):
        raise UsageError(f"The task {task.name} does not define its number of outputs. Add the field `outputs: int`.")
    return task


def with_loss(cost: Cost | Task) -> tuple[Task, Cost]:
    """Return a task and its loss; a plain cost is combined with the task `LABELS`."""
    return (cost, cost.loss) if isinstance(cost, Task) else (LABELS, cost)


TaskBuilder = Callable[..., Task]


def classification(classes: int, **options: Any) -> Classification:
    """One class per example."""
    return Classification(classes, **options)


def segmentation(classes: int, **options: Any) -> Segmentation:
    """One class per pixel."""
    return Segmentation(classes, **options)


def regression(targets: int, **options: Any) -> Regression:
    """Continuous targets."""
    return Regression(targets, **options)


_TASKS: Registry[TaskBuilder] = Registry("task", (classification, segmentation, regression))


def names() -> tuple[str, ...]:
    """Return the names of all tasks, including registered ones."""
    return _TASKS.names()


def register(task: TaskBuilder) -> TaskBuilder:
    """A decorator that registers your own task, a function or class `(classes) -> Task`, under its name."""
    return _TASKS.register(task)


def builder(name: str) -> TaskBuilder:
    """Return the function that builds the task with this name."""
    return _TASKS.find(name)


def build(name: str, classes: int) -> Task:
    """Build a task by its name for a number of classes; raise UsageError if the name is unknown.

    >>> build("classification", 3).outputs
    3
    """
    try:
        built = builder(name)(classes)
    except TypeError as problem:
        raise UsageError(f"Cannot build the task {name} from a number of classes: {problem}.") from problem
    if not isinstance(built, Task):
        raise UsageError(f"Expected the function {name} to return a Task, got {type(built).__name__}.")
    return built

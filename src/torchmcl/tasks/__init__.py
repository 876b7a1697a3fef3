"""Tasks: immutable descriptions of prediction problems.

A task defines the loss per example, the validation of targets, the number of outputs, the combiner, the metrics and the
group under which a memory counts an example. An integer in place of a task is the number of classes of a
`Classification`.
"""

import inspect
from collections.abc import Callable
from typing import Any, Literal

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
    "options",
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


def regression(
    targets: int,
    *,
    loss: Literal["squared", "absolute", "huber", "gaussian", "laplace"] = "squared",
    score: Literal["bce", "ce", "mixture", "mdn"] | None = None,
    score_weight: float = 0.5,
    negatives: int | None = None,
    **fitted: Any,
) -> Regression:
    """One or more numbers per example.

    `fitted` are the options that `fit` and calibration set.

    Args:
        loss: The loss of a hypothesis; gaussian and laplace also predict a scale.
        score: The loss of the score of a hypothesis: binary or plain cross-entropy, or that of a mixture;
            with mdn, the scores are the weights of a mixture in the loss of the hypotheses.
        score_weight: The factor applied to the loss of the scores.
        negatives: The number of members without a target that enter the loss "bce"; by default, all.
    """
    return Regression(targets, loss, score, score_weight, negatives, **fitted)


_TASKS: Registry[TaskBuilder] = Registry("task", (classification, segmentation, regression))


def names() -> tuple[str, ...]:
    """Return the names of all tasks, including registered ones."""
    return _TASKS.names()


def register(task: TaskBuilder) -> TaskBuilder:
    """A decorator that registers your own task, a function or class `(classes, *, …) -> Task`, under its name."""
    return _TASKS.register(task)


def builder(name: str) -> TaskBuilder:
    """Return the function that builds the task with this name."""
    return _TASKS.find(name)


def options(name: str) -> dict[str, Any]:
    """Return the options of a task, its keyword-only arguments, with their defaults.

    >>> options("regression")
    {'loss': 'squared', 'score': None, 'score_weight': 0.5, 'negatives': None}
    """
    parameters = inspect.signature(builder(name)).parameters
    return {option: one.default for option, one in parameters.items() if one.kind is one.KEYWORD_ONLY}


def build(name: str, size: int, **given: Any) -> Task:
    """Build a task by its name.

    Args:
        name: A name in `names()`.
        size: The number of classes, or of target values.
        **given: Options of the task; see `options`.

    Raises:
        UsageError: If the name is unknown, or the task has no such option.

    >>> build("classification", 3).outputs, build("regression", 2, loss="gaussian").outputs
    (3, 4)
    """
    try:
        built = builder(name)(size, **given)
    except TypeError as problem:
        raise UsageError(f"Cannot build the task {name} from a number of classes: {problem}.") from problem
    if not isinstance(built, Task):
        raise UsageError(f"Expected the function {name} to return a Task, got {type(built).__name__}.")
    return built

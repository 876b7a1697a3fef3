"""The task of a training, from what the caller says and what the data is."""

from dataclasses import replace

from torchmcl import tasks
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import External
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels


def task_of_data(given: Task | str | None, name: str | None, data: DataSet, class_weight: str | None = None) -> Labels:
    """What is predicted: the given task, or the one that the data asks for, with the weights of the classes."""
    train, classes = data.train, len(data.train.classes)
    task: Task
    if isinstance(given, Task) and name is not None:
        task = given
    elif name is not None:
        task = tasks.build(name, classes)
    elif train.dense:
        ignored = any(bool((part.target == IGNORE).any()) for part in data.parts.values())
        task = tasks.Segmentation(classes, ignore_index=IGNORE if ignored else None)
    else:
        task = tasks.Classification(classes)
    if not isinstance(task, Labels):
        raise UsageError(
            f"Expected a Classification or Segmentation, with a loss of your own if need be, got {task.name}. "
            "Train other tasks with torchmcl.lightning or in a loop of your own."
        )
    if isinstance(task, tasks.Segmentation) != train.dense:
        kind = "masks" if train.dense else "labels of whole images"
        raise UsageError(f"Expected a task that suits {data.name}, which has {kind}, got {task.name}. Leave task out.")
    if task.classes != classes:
        raise UsageError(
            f"Expected a task for the {classes} classes of {data.name}, got {task.name} for {task.classes}."
        )
    if class_weight is None:
        return task
    if task.class_weight is not None:
        raise UsageError("Expected class_weight once, got it in the task and beside it. Leave one of them out.")
    return replace(task, class_weight=weights_of(class_weight, train))


def weights_of(spelled: str, train: Examples | External) -> tuple[float, ...]:
    """One number per class; balanced, in inverse proportion to how often each occurs, with the mean 1 over the set."""
    classes = len(train.classes)
    if spelled.strip() == "balanced":
        if isinstance(train, External):
            raise UsageError(
                "Expected class_weight as one number per class for a loader of your own, which is not read beforehand, "
                "got balanced."
            )
        counts = train.target.flatten().bincount(minlength=classes)[:classes].double()
        return tuple((counts.sum() / (classes * counts.clamp_min(1))).tolist())
    parts = [part.strip() for part in spelled.split(",")]
    pairs = [part.rpartition("=") for part in parts]
    try:
        weights = tuple(float(weight) for _, _, weight in pairs)
    except ValueError as problem:
        raise UsageError(
            f"Expected class_weight as balanced, one number per class, or name=number, got {spelled!r}."
        ) from problem
    if any(equals for _, equals, _ in pairs):
        named = {name: weight for (name, _, _), weight in zip(pairs, weights, strict=True)}
        if unknown := sorted(set(named) - set(train.classes)):
            raise UsageError(f"Expected class_weight for the classes of the data, got one for {unknown[0]!r}.")
        return tuple(named.get(name, 1.0) for name in train.classes)
    if len(weights) != classes:
        raise UsageError(f"Expected class_weight for each of {classes} classes, got {len(weights)} numbers.")
    return weights

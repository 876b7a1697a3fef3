"""Determine the task of a training run from the arguments of `fit` and the data."""

from dataclasses import replace

from torchmcl import tasks
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import External
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels


def resolve_task(given: Task | str | None, name: str | None, data: DataSet, class_weight: str | None = None) -> Labels:
    """Return the given task, or the task that matches the data if none is given, with the class weights.

    Raises:
        UsageError: If the task or the class weights do not match the data.
    """
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
            f"Expected a Classification or Segmentation task, possibly with a custom loss, got {task.name}. "
            "Train other tasks with torchmcl.lightning or in your own loop."
        )
    if isinstance(task, tasks.Segmentation) != train.dense:
        kind = "masks" if train.dense else "one label per image"
        raise UsageError(f"The task {task.name} does not match {data.name}, which has {kind}. Leave task out.")
    if task.classes != classes:
        raise UsageError(f"{data.name} has {classes} classes, but the task has {task.classes}. Leave task out.")
    if class_weight is None:
        return task
    if task.class_weight is not None:
        raise UsageError("Both the task and fit have a class_weight. Set class_weight in only one of them.")
    return replace(task, class_weight=parse_class_weight(class_weight, train))


def parse_class_weight(text: str, train: Examples | External) -> tuple[float, ...]:
    """Return one weight per class from the text of the option class_weight.

    Balanced weights are inversely proportional to the class frequencies, and their mean over the data is 1.

    Raises:
        UsageError: If the text is invalid, a class is unknown, or the number of weights is wrong.
    """
    classes = len(train.classes)
    if text.strip() == "balanced":
        if isinstance(train, External):
            raise UsageError(
                "Cannot compute balanced class weights for a custom data loader, because its labels are unknown. "
                "Pass one number per class as class_weight."
            )
        counts = train.target.flatten().bincount(minlength=classes)[:classes].double()
        return tuple((counts.sum() / (classes * counts.clamp_min(1))).tolist())
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    try:
        weights = tuple(float(weight) for _, _, weight in pairs)
    except ValueError as problem:
        raise UsageError(
            f"Expected class_weight to be balanced, one number per class, or name=number, got {text!r}."
        ) from problem
    if any(equals for _, equals, _ in pairs):
        named = {name: weight for (name, _, _), weight in zip(pairs, weights, strict=True)}
        if unknown := sorted(set(named) - set(train.classes)):
            raise UsageError(f"Unknown class {unknown[0]!r} in class_weight. Use the class names of the data set.")
        return tuple(named.get(name, 1.0) for name in train.classes)
    if len(weights) != classes:
        raise UsageError(f"Expected one class_weight for each of the {classes} classes, got {len(weights)}.")
    return weights

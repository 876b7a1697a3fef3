"""Determine the task of a training run from the arguments of `fit` and the data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchmcl import tasks
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import External
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels
from torchmcl.training.config import MethodConfig


def resolve_task(
    given: Task | str | None, config: MethodConfig, data: DataSet, class_weight: str | None = None
) -> Task:
    """Return the given task, or the task that matches the data if none is given, fitted to the training set.

    Raises:
        UsageError: If the task, its options or the class weights do not match the data.
    """
    train = data.train
    try:
        if config.task is None:
            task = _inferred(data, config.task_options)
        else:
            task = given if isinstance(given, Task) else tasks.build(config.task, _size(train), **config.task_options)
        task = task.for_training(train.target, train.classes, train.weight)
    except UsageError as problem:
        kind = "floats" if train.continuous else "masks" if train.dense else "one label per image"
        raise UsageError(f"In {data.name}, which has {kind}: {problem}") from problem
    if class_weight is None:
        return task
    if not isinstance(task, Labels):
        raise UsageError(f"The option class_weight needs classes, which the task {task.name} does not have. Omit it.")
    if task.class_weight is not None:
        raise UsageError("Both the task and fit have a class_weight. Set class_weight in only one of them.")
    return replace(task, class_weight=parse_class_weight(class_weight, train))


def _inferred(data: DataSet, options: Mapping[str, Any]) -> Task:
    """Return the task that matches the targets: floats, masks or labels."""
    train = data.train
    if train.continuous:
        return tasks.build("regression", _size(train), **options)
    if options:
        raise UsageError(
            f"The option {next(iter(options))} belongs to regression, but the targets are classes. Omit it, or convert "
            "the targets to floats."
        )
    if train.dense:
        ignored = any(bool((part.target == IGNORE).any()) for part in data.parts.values())
        return tasks.Segmentation(_size(train), ignore_index=IGNORE if ignored else None)
    return tasks.Classification(_size(train))


def _size(train: Examples | External) -> int:
    return train.target.shape[-1] if train.continuous else len(train.classes)


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

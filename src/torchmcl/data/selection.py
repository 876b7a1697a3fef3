from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from reprlib import repr as shown

import torch

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import ImageFiles
from torchmcl.data.strata import Purpose, hold_out, stratified_subset, train_test_split
from torchmcl.errors import UsageError


def select(
    data: DataSet,
    *,
    classes: str | Sequence[str] | None = None,
    test: float = 0.0,
    limit: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
) -> DataSet:
    """Select classes, limit the training examples, and hold out a validation part, and a test part if there is none."""
    parts, choices = dict(data.parts), dict(data.choices)
    if not 0 <= validation < 1:
        raise UsageError(f"Expected 0 <= validation < 1, got {validation}.")
    if limit is not None and limit < 1:
        raise UsageError(f"Expected limit >= 1, got {limit}.")
    if classes is not None and next(iter(parts.values())).label_names == ("all",):
        raise UsageError(f"{data.name} has numbers to predict, not classes. Omit the selection of classes.")
    if classes is not None:
        names = _class_names(classes, next(iter(parts.values())).label_names)
        parts = {part: select_classes(examples, names) for part, examples in parts.items()}
        choices["classes"] = names
        if empty := [part for part, examples in parts.items() if len(examples) == 0]:
            raise UsageError(f"The {empty[0]} part of {data.name} has no examples of {', '.join(names)}.")
    if test and "test" not in parts:
        purpose = Purpose.TEST_OF_NUMBERS if parts["train"].continuous else Purpose.TEST
        split = train_test_split(parts["train"].labels, fraction=test, seed=seed, purpose=purpose)
        parts |= {part: parts["train"].subset(index) for part, index in split.items()}
        choices |= {"split": f"{test:g} of each class held out for testing", "split_seed": seed}
    if "train" in parts and limit is not None:
        parts["train"] = parts["train"].subset(stratified_subset(parts["train"].labels, limit, seed=seed))
        choices |= {"limit": limit, "limit_seed": seed}
    if "train" in parts and validation:
        kept, held_out = hold_out(parts["train"].labels, validation, seed=seed, purpose=Purpose.VALIDATION)
        parts |= {"train": parts["train"].subset(kept), "validation": parts["train"].subset(held_out)}
        choices |= {"validation": validation, "validation_seed": seed}
    return replace(data, parts=parts, choices=choices)


def select_classes(examples: Examples, names: Sequence[str]) -> Examples:
    """Return the examples of some classes, or groups if there are any, relabelled in the order of `names`."""
    number = torch.full((len(examples.label_names),), -1)
    number[[examples.label_names.index(name) for name in names]] = torch.arange(len(names))
    label = number[examples.labels]
    subset, label = examples.subset((label >= 0).nonzero()[:, 0]), label[label >= 0]
    if examples.group is None:
        return replace(subset, target=label, classes=tuple(names))
    return replace(subset, group=label, groups=tuple(names))


def read_if_smaller(examples: Examples, size: float) -> Examples:
    """Read image files into memory if their pixels take fewer than `size` bytes."""
    images = examples.images
    if not isinstance(images, ImageFiles) or torch.Size(images.shape).numel() >= size:
        return examples
    return replace(examples, images=images[torch.arange(len(images))])


def _class_names(classes: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Split and check class names; a string is one name, possibly with commas, or several names separated by commas."""
    if isinstance(classes, str):
        classes = [classes] if classes in known else [name.strip() for name in classes.split(",")]
    try:
        names = [str(name) for name in islice(classes, len(known) + 1)]
    except TypeError as problem:
        raise UsageError(f"Expected a list of class names, got {shown(classes)}.") from problem
    if not names or len(set(names)) != len(names):
        raise UsageError(f"Expected one or more unique classes, got {', '.join(names) or 'none'}.")
    for name in names:
        if name not in known:
            raise UsageError(_unknown_class(name, known))
    return names


def _unknown_class(name: str, known: Sequence[str]) -> str:
    """Return the error message for an unknown class."""
    name, lower = name[:100], {each.lower(): each for each in known}
    similar = [each for text, each in lower.items() if name and (name.lower() in text or text in name.lower())]
    similar += [lower[text] for text in get_close_matches(name.lower(), list(lower), n=3, cutoff=0.5)]
    if similar:
        return f"Unknown class {name!r}. Did you mean {', '.join(list(dict.fromkeys(similar))[:5])}?"
    more = f" and {len(known) - 10} more" if len(known) > 10 else ""
    return f"Unknown class {name!r}. The classes are {', '.join(known[:10])}{more}."

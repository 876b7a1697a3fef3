from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from reprlib import repr as shown

import torch

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import ImageFiles
from torchmcl.data.strata import Purpose, at_most, hold_out
from torchmcl.errors import UsageError


def choose(
    data: DataSet,
    *,
    classes: str | Sequence[str] | None = None,
    limit: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
) -> DataSet:
    """Some classes of a data set, some of its training examples, and some of those held out; see `load`."""
    parts, choices = dict(data.parts), dict(data.choices)
    if not 0 <= validation < 1:
        raise UsageError(f"Expected a fraction from 0 to below 1 for validation, got {validation}.")
    if limit is not None and limit < 1:
        raise UsageError(f"Expected a limit of 1 example or more, got {limit}.")
    if classes is not None:
        chosen = _listed(classes, next(iter(parts.values())).label_names)
        parts = {name: only(examples, chosen) for name, examples in parts.items()}
        choices["classes"] = chosen
        if none := [name for name, examples in parts.items() if len(examples) == 0]:
            raise UsageError(f"Expected examples of {', '.join(chosen)} in {data.name}, its {none[0]} part has none.")
    if "train" in parts and limit is not None:
        parts["train"] = parts["train"].subset(at_most(parts["train"].labels, limit, seed=seed))
        choices |= {"limit": limit, "limit_seed": seed}
    if "train" in parts and validation:
        kept, held = hold_out(parts["train"].labels, validation, seed=seed, purpose=Purpose.VALIDATION)
        parts |= {"train": parts["train"].subset(kept), "validation": parts["train"].subset(held)}
        choices |= {"validation": validation, "validation_seed": seed}
    return replace(data, parts=parts, choices=choices)


def only(examples: Examples, names: Sequence[str]) -> Examples:
    """The examples of these classes, of these groups where the memory counts groups, numbered in this order.

    >>> pets = Examples(torch.zeros(3, 4), torch.tensor([0, 1, 2]), ("cat", "cow", "dog"))
    >>> only(pets, ["dog", "cat"]).target
    tensor([1, 0])
    """
    number = torch.full((len(examples.label_names),), -1)
    number[[examples.label_names.index(name) for name in names]] = torch.arange(len(names))
    label = number[examples.labels]
    few, label = examples.subset((label >= 0).nonzero()[:, 0]), label[label >= 0]
    if examples.group is None:
        return replace(few, target=label, classes=tuple(names))
    return replace(few, group=label, groups=tuple(names))


def read_if_below(examples: Examples, size: float) -> Examples:
    """The examples with their images in memory, if they are files with fewer than `size` bytes of pixels."""
    images = examples.images
    if not isinstance(images, ImageFiles) or torch.Size(images.shape).numel() >= size:
        return examples
    return replace(examples, images=images[torch.arange(len(images))])


def _listed(classes: str | Sequence[str], known: Sequence[str]) -> list[str]:
    """Names of classes, of which a text holds several between commas, or one that has commas itself."""
    if isinstance(classes, str):
        classes = [classes] if classes in known else [name.strip() for name in classes.split(",")]
    try:
        names = [str(name) for name in islice(classes, len(known) + 1)]
    except TypeError as problem:
        raise UsageError(f"Expected the names of classes, got {shown(classes)}.") from problem
    if not names or len(set(names)) != len(names):
        raise UsageError(f"Expected one class or more, each once, got {', '.join(names) or 'none'}.")
    for name in names:
        if name not in known:
            raise UsageError(_near(name, known))
    return names


def _near(name: str, known: Sequence[str]) -> str:
    """What to say of a class that is not known.

    >>> _near("plane", ["airplane", "dog"])
    "Expected classes of the data set, got 'plane'. Near are: airplane."
    """
    name, low = name[:100], {each.lower(): each for each in known}
    parts = [each for text, each in low.items() if name and (name.lower() in text or text in name.lower())]
    near = [*parts, *(low[text] for text in get_close_matches(name.lower(), list(low), n=3, cutoff=0.5))]
    if not near:
        more = f" and {len(known) - 10} more" if len(known) > 10 else ""
        return f"Expected classes out of {', '.join(known[:10])}{more}, got {name!r}."
    return f"Expected classes of the data set, got {name!r}. Near are: {', '.join(list(dict.fromkeys(near))[:5])}."

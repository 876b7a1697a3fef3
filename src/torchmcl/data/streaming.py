from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset

from torchmcl._utils.randomness import preserve_generators, seed_generators
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.arrays import as_targets, default_preprocess
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.lazy import Lazy
from torchmcl.data.selection import select
from torchmcl.errors import TorchmclError, UsageError


def from_dataset(
    train: Any,
    test: Any = 0.2,
    validation: Any = 0.0,
    *,
    classes: Sequence[str] | None = None,
    targets: Any = None,
    test_targets: Any = None,
    validation_targets: Any = None,
    limit: int | None = None,
    seed: int = 0,
    preprocess: str | None = None,
    name: str = "dataset",
) -> DataSet:
    """Create a data set from map-style torch `Dataset`s, from which worker processes read examples on demand.

    Items are (x, y): x is a uint8 or float tensor (C, H, W), (H, W) or (D,), with the same shape for all items; y is an
    integer, or numbers to predict, a float or a tensor of floats (D,) or (T, D). Augmentation may use the global
    generators of torch, NumPy and Python. These generators are seeded for each example of each epoch, so training does
    not depend on the number of workers or processes and resumes exactly.

    Args:
        train: the `Dataset` of training examples
        test: the `Dataset` of test examples, or the fraction of each class of `train` to hold out
        validation: the `Dataset` of validation examples, or the fraction to hold out after `test` and `limit`
            are applied
        classes: the names of the classes 0, 1, …; by default `train.classes`, or else the sorted labels
        targets: the labels of `train`; by default `train.targets` or `train.labels`, or else the y of all items. If
            `targets` is given, the y of each item is ignored and may be missing
        test_targets: the labels of a `Dataset` given as `test`
        validation_targets: the labels of a `Dataset` given as `validation`
        limit: the maximum number of training examples; each class keeps its proportion
        seed: the seed for choosing the examples for `limit` and those to hold out
        preprocess: a name in `preprocess.names()`; by default as in `from_arrays`
        name: the name of the data set

    Returns:
        A `DataSet` that reads examples on demand.

    Raises:
        UsageError: if an argument is not a map-style `Dataset`, or an item has the wrong type or shape.

    >>> pairs = [(torch.full((1, 8, 8), number, dtype=torch.uint8), number % 2) for number in range(20)]
    >>> numbers = from_dataset(pairs, classes=["even", "odd"])
    >>> numbers.train, numbers.test
    (Examples(16 of (1, 8, 8), 2 classes), Examples(4 of (1, 8, 8), 2 classes))
    """
    validate_types({"limit": limit, "seed": seed, "preprocess": preprocess, "name": name}, from_dataset)
    if preprocess is not None:
        preprocessing.split_whitening(preprocess)  # raises UsageError if the name is unknown
    if classes is None and _are_names(known := getattr(train, "classes", None)):
        classes = known
    parts = {"train": _examples(train, targets, "train", classes)}
    fractions = {"test": 0.0, "validation": 0.0}
    for part, given, labels in (("test", test, test_targets), ("validation", validation, validation_targets)):
        if not isinstance(given, int | float) or isinstance(given, bool):
            parts[part] = _examples(given, labels, part, classes, like=parts["train"])
        elif labels is not None:
            raise UsageError(f"Cannot use {part}_targets if {part} is a fraction. Omit {part}_targets.")
        else:
            fractions[part] = float(given)
    data = DataSet(name, parts, preprocess or default_preprocess(parts["train"]))
    return select(data, test=fractions["test"], validation=fractions["validation"], limit=limit, seed=seed)


@final
@dataclass(frozen=True, eq=False)
class Streamed(Lazy):
    """Examples of a `Dataset`, read on demand."""

    dataset: Any  # items (x, y)
    name: str  # used in error messages
    indices: Tensor  # the indices (N,) of the examples in the data set
    template: Tensor  # an empty tensor (0, …) with the shape and type of the examples
    labels: NDArray[Any] | None = None  # the labels of all items, to compare with y; if None, y is ignored

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, (N, C, H, W) or (N, D)."""
        return (len(self.indices), *self.template.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The data type, uint8 or float32."""
        return self.template.dtype

    def read(self, index: Tensor, seeds: Tensor) -> Tensor:
        """Read examples, (B,) -> (B, …); the global generators are seeded for each example from `seeds`."""
        with preserve_generators():
            pairs = zip(self.indices[index].tolist(), seeds.tolist(), strict=True)
            return self._stack([self._image(at, seed) for at, seed in pairs])

    def _image(self, index: int, seed: int) -> Tensor:
        x, y = read_item(self.dataset, index, seed, self.name, labelled=self.labels is not None)
        where = f"example {index} of {self.name}"
        if (x.shape, x.dtype) != (shape := self.template.shape[1:], self.dtype):
            expected, got = f"{tuple(shape)} {self.dtype}", f"{tuple(x.shape)} {x.dtype} in {where}"
            raise UsageError(f"Expected all examples to be {expected}, got {got}. Convert the example.")
        if self.labels is not None and not _equal(y, label := self.labels[index]):
            raise UsageError(f"The targets contain {label} for {where}, but its y is {y!r}. Pass targets=….")
        return x.cpu()

    def subset(self, index: Tensor) -> "Streamed":
        """Return the examples at the indices (K,), in this order."""
        return replace(self, indices=self.indices[index])


def read_item(dataset: Any, index: int, seed: int, name: str, *, labelled: bool = True) -> tuple[Tensor, Any]:
    """Seed the generators and read an item: x (C, H, W) uint8 or float32, or (D,) float32, and its label."""
    seed_generators(seed)
    where = f"example {index} of {name}"
    try:
        item = dataset[index]
    except TorchmclError:
        raise
    except Exception as problem:
        advice = "Correct the Dataset, or exclude the example with torch.utils.data.Subset."
        raise UsageError(f"Reading {where} failed with {type(problem).__name__}: {problem}. {advice}") from problem
    is_pair = isinstance(item, tuple | list) and len(item) > labelled
    x = item[0] if is_pair else item
    if not isinstance(x, Tensor) or (labelled and not is_pair):
        raise UsageError(f"Expected (x, y) with a tensor x, got {_type(item)} for {where}. Return torch tensors.")
    return _tensor(x, where), _label(item[1], where) if labelled else None


def _tensor(x: Tensor, where: str) -> Tensor:
    """Convert x to uint8 or float32, and add a channel axis to images without one."""
    if x.dim() not in (1, 2, 3) or x.numel() == 0 or x.is_complex() or x.layout != torch.strided:
        got = f"{tuple(x.shape)} {x.dtype}"
        raise UsageError(f"Expected x to be an image (C, H, W) or (H, W), or a row (D,), got {got} for {where}.")
    if x.dtype != torch.uint8 and not x.is_floating_point() and x.dim() > 1:
        raise UsageError(
            f"Expected uint8 or float values, got {x.dtype} for {where}. Convert x with x.to(torch.uint8)."
        )
    x = x.detach()[None] if x.dim() == 2 else x.detach()
    if x.dtype == torch.uint8 and x.dim() == 3:
        return x
    x = x.float()
    if not bool(x.isfinite().all()):
        raise UsageError(f"Expected finite numbers, got NaN or infinity for {where}. Replace or remove them.")
    return x


def _label(y: Any, where: str) -> Any:
    """Return an integer, a string, or an array of numbers to predict (D,) or (T, D) float32."""
    if isinstance(y, float) or (isinstance(y, Tensor | np.generic | np.ndarray) and _is_float(y)):
        values = np.atleast_1d(np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y, dtype=np.float32))
        if 0 < values.ndim <= 2 and values.size:
            return values
    y = y.item() if isinstance(y, Tensor | np.generic | np.ndarray) and tuple(y.shape) in ((), (1,)) else y
    if isinstance(y, int | str):
        return y
    raise UsageError(f"Expected y to be an integer, or floats to predict, got {_type(y)} for {where}. Convert y.")


def _is_float(y: Any) -> bool:
    return y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"


def _equal(y: Any, label: Any) -> bool:
    return np.array_equal(y, label, equal_nan=True) if isinstance(y, np.ndarray) else bool(y == label)


def _type(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {', '.join(type(each).__name__ for each in value[:3]) or 'nothing'}"
    return type(value).__name__


def _examples(
    dataset: Any, targets: Any, name: str, classes: Sequence[str] | None, like: Examples | None = None
) -> Examples:
    """Return examples that are read on demand; if `like` is given, they must match its shape and type."""
    count = _length(dataset, name)
    labels = _known_labels(dataset) if targets is None else targets
    with preserve_generators():
        first, _ = read_item(dataset, 0, 0, name, labelled=targets is None)
        if labels is None:
            labels = _all_labels(dataset, count, name)
    if like is not None and (first.shape, first.dtype) != (like.images.shape[1:], like.images.dtype):
        expected, got = f"{tuple(like.images.shape[1:])} {like.images.dtype}", f"{tuple(first.shape)} {first.dtype}"
        raise UsageError(f"Expected {name} to have the shape and type of train, {expected}, got {got}. Convert {name}.")
    target, label, names = as_targets(labels, name, classes, like)
    if len(target) != count:
        raise UsageError(f"Expected one target for each of the {count} examples of {name}, got {len(target)}.")
    template, checked = first.new_empty(0, *first.shape), label if targets is None else None
    return Examples(Streamed(dataset, name, torch.arange(count), template, checked), target, names)


def _all_labels(dataset: Any, count: int, name: str) -> Any:
    """Read the y of all items: a list of labels, or an array of numbers to predict."""
    labels = [read_item(dataset, index, index, name)[1] for index in range(count)]
    if not any(isinstance(y, np.ndarray) for y in labels):
        return labels
    shapes = {y.shape if isinstance(y, np.ndarray) else "an integer" for y in labels}
    if len(shapes) > 1:
        advice = "Return the same shape for all items, and pad several targets with rows of NaN."
        raise UsageError(f"Expected the same shape of all y in {name}, got {sorted(map(str, shapes))[:5]}. {advice}")
    return np.stack(labels)


def _length(dataset: Any, name: str) -> int:
    """Return the number of examples; raise UsageError unless the data set is map-style and non-empty."""
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not indexed or isinstance(dataset, str | Tensor | dict | DataLoader | IterableDataset):
        got = f"{type(dataset).__name__}. Use data.from_loaders for a DataLoader."
        raise UsageError(f"Expected a map-style Dataset of (x, y) as {name}, got {got}")
    if len(dataset) < 1:
        raise UsageError(f"The data set {name} is empty. Pass a Dataset with at least one example.")
    return len(dataset)


def _known_labels(dataset: Any) -> Any:
    """Return the labels if an attribute of the data set contains them, as in torchvision, or else None."""
    if isinstance(dataset, Subset):
        labels = _known_labels(dataset.dataset)
        return None if labels is None else as_targets(labels, "targets", None)[1][np.asarray(dataset.indices)]
    attributes = (getattr(dataset, name, None) for name in ("targets", "labels"))
    return next((labels for labels in attributes if isinstance(labels, Tensor | np.ndarray | list | tuple)), None)


def _are_names(classes: Any) -> bool:
    return isinstance(classes, list | tuple) and bool(classes) and all(isinstance(name, str) for name in classes)

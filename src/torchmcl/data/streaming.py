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
from torchmcl.data.arrays import as_targets
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.lazy import Lazy
from torchmcl.data.preprocess import names as preparations
from torchmcl.data.selection import choose
from torchmcl.data.strata import Purpose, hold_out
from torchmcl.errors import TorchmclError, UsageError, known_name


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
    """A data set of map-style torch `Dataset`s, whose examples are read when they are needed, in worker processes.

    Items are (x, y): x a tensor (C, H, W), (H, W) or (D,) of bytes or floats, all of one shape; y a whole number. An
    item may draw from the global generators of torch, numpy and Python, for augmentation: they are seeded for each
    example of each epoch, so that training does not depend on the number of workers or processes and resumes exactly.

    Args:
        train: the `Dataset` of training examples
        test: the `Dataset` of test examples, or the fraction of each class of `train` that is held out
        validation: likewise, of what `limit` and `test` leave; none by default
        classes: the names of the classes 0, 1, …; `train.classes` by default, or else whatever labels occur, sorted
        targets: the label of each example of `train`; `train.targets` or `train.labels` by default, or else all items
            are read once. If given, the y of items is ignored, and items may be x only
        test_targets: likewise for a `Dataset` as `test`
        validation_targets: likewise for a `Dataset` as `validation`
        limit: the largest number of training examples, of each class in proportion
        seed: of `limit` and of what is held out
        preprocess: a name in `preprocess.names()`; gcn for bytes and none for floats by default

    >>> pairs = [(torch.full((1, 8, 8), number, dtype=torch.uint8), number % 2) for number in range(20)]
    >>> made = from_dataset(pairs, classes=["even", "odd"])
    >>> made.train, made.test
    (Examples(16 of (1, 8, 8), 2 classes), Examples(4 of (1, 8, 8), 2 classes))
    """
    validate_types({"limit": limit, "seed": seed, "preprocess": preprocess, "name": name}, from_dataset)
    if preprocess is not None:
        known_name("preprocessing", preprocess, preparations())
    if classes is None and _are_names(known := getattr(train, "classes", None)):
        classes = known
    whole = _examples(train, targets, "train", classes)
    parts, choices = {"train": whole}, {}
    for part, given, labels in (("test", test, test_targets), ("validation", validation, validation_targets)):
        if not _is_fraction(given):
            parts[part] = _examples(given, labels, part, classes, like=whole)
        elif labels is not None:
            raise UsageError(f"Expected {part}_targets beside a Dataset as {part}, got a fraction. Leave them out.")
    if _is_fraction(test) and test:
        kept, held = hold_out(whole.target, test, seed=seed, purpose=Purpose.TEST)
        parts |= {"train": whole.subset(kept), "test": whole.subset(held)}
        choices = {"split": f"{test:g} of each class for the test", "split_seed": seed}
    prepare = preprocess or ("gcn" if whole.images.dtype == torch.uint8 else "none")
    fraction = float(validation) if _is_fraction(validation) else 0.0
    return choose(DataSet(name, parts, prepare, choices), limit=limit, validation=fraction, seed=seed)


@final
@dataclass(frozen=True, eq=False)
class Streamed(Lazy):
    """Examples of a `Dataset`, read when they are needed.

    Args:
        dataset: of items (x, y)
        what: its name in error messages
        places: of the examples in the dataset, (N,)
        form: an empty tensor (0, …) of the shape and type that examples have
        labels: what each y of the dataset must be; None if it is not looked at

    >>> few = Streamed([(torch.zeros(3), 0), (torch.ones(3), 1)], "train", torch.arange(2), torch.empty(0, 3))
    >>> few[torch.tensor([1, 1])].sum()
    tensor(6.)
    """

    dataset: Any
    what: str
    places: Tensor
    form: Tensor
    labels: NDArray[Any] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, C, H, W) or (N, D)."""
        return (len(self.places), *self.form.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Bytes or floats."""
        return self.form.dtype

    def read(self, index: Tensor, draw: Tensor) -> Tensor:
        """(B,) -> (B, …); for each example, the global generators are seeded with its number in `draw` (B,)."""
        with preserve_generators():
            pairs = zip(self.places[index].tolist(), draw.tolist(), strict=True)
            return self._stacked([self._image(place, number) for place, number in pairs])

    def _image(self, place: int, number: int) -> Tensor:
        x, y = item(self.dataset, place, number, self.what, labelled=self.labels is not None)
        if (x.shape, x.dtype) != (shape := self.form.shape[1:], self.dtype):
            raise UsageError(
                f"Expected examples of one shape and type, {tuple(shape)} {self.dtype}, got {tuple(x.shape)} {x.dtype} "
                f"in example {place} of {self.what}. Resize or convert it."
            )
        if self.labels is not None and y != self.labels[place]:
            raise UsageError(
                f"Expected {self.labels[place]} as y in example {place} of {self.what}, as in its targets, got {y!r}. "
                "Correct the Dataset, or pass targets=… to be used instead."
            )
        return x.cpu()

    def subset(self, index: Tensor) -> "Streamed":
        """The examples at these places, (K,), in this order."""
        return replace(self, places=self.places[index])


def item(dataset: Any, place: int, draw: int, what: str, *, labelled: bool = True) -> tuple[Tensor, Any]:
    """An example as x (C, H, W) uint8 or float32, or (D,) float32, and its label, drawn from a number of its own.

    Raises:
        UsageError: in one line, if the dataset fails or returns something else.
    """
    seed_generators(draw)
    where = f"example {place} of {what}"
    try:
        found = dataset[place]
    except TorchmclError:
        raise
    except Exception as problem:
        raise UsageError(
            f"Expected a Dataset that returns every example, got {type(problem).__name__} for {where}: {problem}. "
            "Correct the Dataset, or leave the example out with torch.utils.data.Subset."
        ) from problem
    pair = isinstance(found, tuple | list) and len(found) > labelled
    x = found[0] if pair else found
    if not isinstance(x, Tensor) or (labelled and not pair):
        raise UsageError(f"Expected (x, y) with a tensor x, got {_kind(found)} for {where}. Return torch tensors.")
    return _tensor(x, where), _label(found[1], where) if labelled else None


def _tensor(x: Tensor, where: str) -> Tensor:
    """As examples are kept: images with channels."""
    if x.dim() not in (1, 2, 3) or x.numel() == 0 or x.is_complex() or x.layout != torch.strided:
        raise UsageError(
            f"Expected x as an image (C, H, W) or (H, W), or a row of a table (D,), got {tuple(x.shape)} {x.dtype} for "
            f"{where}. Reshape it in the Dataset."
        )
    if x.dtype != torch.uint8 and not x.is_floating_point() and x.dim() > 1:
        raise UsageError(f"Expected bytes or floats, got {x.dtype} for {where}. Convert it with x.to(torch.uint8).")
    x = x.detach()[None] if x.dim() == 2 else x.detach()
    if x.dtype == torch.uint8 and x.dim() == 3:
        return x
    x = x.float()
    if not bool(x.isfinite().all()):
        raise UsageError(f"Expected finite numbers, got NaN or infinity for {where}. Fill or leave them out.")
    return x


def _label(y: Any, where: str) -> Any:
    y = y.item() if isinstance(y, Tensor | np.generic | np.ndarray) and tuple(y.shape) in ((), (1,)) else y
    if isinstance(y, int | str):
        return y
    raise UsageError(f"Expected a whole number as y, got {_kind(y)} for {where}. Return y as an int.")


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{type(value).__name__} of {', '.join(type(each).__name__ for each in value[:3]) or 'nothing'}"
    return type(value).__name__


def _examples(
    dataset: Any, targets: Any, what: str, classes: Sequence[str] | None, like: Examples | None = None
) -> Examples:
    """All examples of a dataset, none of which is held; `like` are those of the training set."""
    count = _count(dataset, what)
    declared = _declared(dataset) if targets is None else targets
    with preserve_generators():
        first, _ = item(dataset, 0, 0, what, labelled=targets is None)
        if declared is None:
            declared = [item(dataset, place, place, what)[1] for place in range(count)]
    if like is not None and (first.shape, first.dtype) != (like.images.shape[1:], like.images.dtype):
        raise UsageError(
            f"Expected {what} of the shape and type of train, {tuple(like.images.shape[1:])} {like.images.dtype}, got "
            f"{tuple(first.shape)} {first.dtype}. Resize or convert it in the Dataset."
        )
    target, label, names = as_targets(declared, what, classes, None if like is None else like.classes)
    if len(target) != count:
        raise UsageError(f"Expected a target for each of {count} examples of {what}, got {len(target)}.")
    form, checked = first.new_empty(0, *first.shape), label if targets is None else None
    return Examples(Streamed(dataset, what, torch.arange(count), form, checked), target, names)


def _count(dataset: Any, what: str) -> int:
    """The number of examples in a map-style dataset."""
    if isinstance(dataset, DataLoader | IterableDataset):
        raise UsageError(
            f"Expected a map-style Dataset as {what}, got {type(dataset).__name__}. Use data.from_loaders for a "
            "DataLoader, or pass the Dataset that it loads from."
        )
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not indexed or isinstance(dataset, str | Tensor | dict):
        raise UsageError(f"Expected a map-style Dataset of (x, y) as {what}, got {type(dataset).__name__}.")
    if len(dataset) < 1:
        raise UsageError(f"Expected a Dataset with examples as {what}, got an empty one.")
    return len(dataset)


def _declared(dataset: Any) -> Any:
    """The label of each example, where a dataset has them in an attribute, as torchvision's do."""
    if isinstance(dataset, Subset):
        whole = _declared(dataset.dataset)
        return None if whole is None else as_targets(whole, "targets", None)[1][np.asarray(dataset.indices)]
    found = (getattr(dataset, name, None) for name in ("targets", "labels"))
    return next((labels for labels in found if isinstance(labels, Tensor | np.ndarray | list | tuple)), None)


def _are_names(classes: Any) -> bool:
    return isinstance(classes, list | tuple) and bool(classes) and all(isinstance(name, str) for name in classes)


def _is_fraction(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)

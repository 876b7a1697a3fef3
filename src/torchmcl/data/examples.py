from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from torchmcl.data.lazy import Lazy
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE
from torchmcl.structures.values import check_finite

INTEGER_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples.

    Args:
        images: images (N, C, H, W) uint8, a table (N, D) float32, or `Lazy` images such as `ImageFiles`
        target: class indices (N,) int64, masks (N, H, W) uint8 in which 255 marks pixels to ignore, or numbers to
            predict (N, D), or (N, T, D) padded with rows of NaN, float32
        classes: the name of each class; () if the targets are numbers
        group: group indices (N,) int64; if they are given, the memory counts groups instead of classes
        groups: the name of each group
        weight: positive floating-point weights (N,) of the examples in the training loss and in the members' shares;
            1 by default. Metrics ignore the weights

    Raises:
        UsageError: if a tensor has the wrong type or length, or if a label is out of range.

    >>> examples = Examples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0]), ("cat", "dog"))
    >>> examples.subset([2, 1]).target
    tensor([0, 1])
    """

    images: Tensor | Lazy
    target: Tensor
    classes: tuple[str, ...]
    group: Tensor | None = None
    groups: tuple[str, ...] = ()
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.classes and isinstance(self.target, Tensor) and self.target.is_floating_point():
            check_values(self.target)
        else:
            _check_integers(self.target, "targets (N,) or (N, H, W)", (1, 3))
        if self.group is not None:
            _check_integers(self.group, "groups (N,)", (1,))
        if self.weight is not None:
            _check_weights(self.weight, len(self.target))
        sizes = [len(part) for part in (self.images, self.target, self.group) if part is not None]
        if len(set(sizes)) > 1:
            got = " and ".join(map(str, sizes))
            raise UsageError(f"Expected images, targets and groups of the same length, got lengths {got}.")
        for label, names in ((self.target, self.classes), (self.group, self.groups)):
            if label is not None and not label.is_floating_point():
                check_labels(label, len(names))

    def __len__(self) -> int:
        return len(self.target)

    def __repr__(self) -> str:
        D = self.target.shape[-1]
        kind = f"{D} target value{'s' * (D > 1)}" if self.continuous else f"{len(self.classes)} classes"
        return f"Examples({len(self)} of {tuple(self.images.shape[1:])}, {kind})"

    @property
    def continuous(self) -> bool:
        """Whether the targets are numbers, as in regression, and not classes."""
        return self.target.is_floating_point()

    @property
    def dense(self) -> bool:
        """Whether each pixel has a target."""
        return self.target.ndim > 1 and not self.continuous

    @property
    def labels(self) -> Tensor:
        """The labels (N,) for stratified splits and for the memory: the groups if given, otherwise the targets.

        Without groups, all examples with numbers as targets have the label 0.
        """
        if self.group is None and self.continuous:
            return torch.zeros(len(self), dtype=torch.int64)
        return (self.target if self.group is None else self.group).long()

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classes or groups that `labels` contains."""
        if self.group is not None:
            return self.groups
        return ("all",) if self.continuous else self.classes

    @property
    def fingerprint(self) -> str:
        """A hash of the images, targets and weights in their order. Only the first 256 `Lazy` images are included."""
        images = self.images
        tensor = images if isinstance(images, Tensor) else images[torch.arange(min(len(images), 256))]
        return _fingerprint(tensor, self.target, self.weight)

    @property
    def label_fingerprint(self) -> str:
        """A hash of the targets and weights in their order."""
        return _fingerprint(self.target, self.weight)

    def subset(self, index: Tensor | Sequence[int]) -> "Examples":
        """Return the examples at the indices (K,), in this order."""
        index = torch.as_tensor(index)
        index = index if index.numel() else index.long()  # torch converts [] to a float tensor
        _check_integers(index, "indices (K,)", (1,))
        index = index.long()
        images = self.images.subset(index) if isinstance(self.images, Lazy) else self.images[index]
        group, weight = (None if part is None else part[index] for part in (self.group, self.weight))
        return Examples(images, self.target[index], self.classes, group, self.groups, weight)


def _fingerprint(*parts: Tensor | None) -> str:
    digest = sha256()
    for part in parts:
        if part is not None:
            digest.update(part.cpu().contiguous().view(-1).numpy().data)  # no copy of the images
    return digest.hexdigest()[:16]


def check_labels(label: Tensor, classes: int) -> None:
    """Raise UsageError unless labels (N,) or masks (N, H, W) contain class indices; masks may also contain 255."""
    known = label[label != IGNORE] if label.ndim > 1 and classes <= IGNORE else label
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise UsageError(f"Expected labels from 0 to {classes - 1}, got {int(known.min())} to {int(known.max())}.")


def check_values(target: Tensor) -> None:
    """Raise UsageError unless targets are finite numbers (N, D), or (N, T, D) padded with rows of NaN."""
    if target.ndim not in (2, 3) or target.shape[-1] == 0:
        raise UsageError(f"Expected numbers to predict (N, D) or (N, T, D), got targets {tuple(target.shape)}.")
    check_finite(target)


def _check_integers(label: Tensor, what: str, dims: tuple[int, ...]) -> None:
    if not isinstance(label, Tensor):
        raise UsageError(f"Expected {what} as a tensor, got {type(label).__name__}. Use torch.tensor or from_arrays.")
    if label.dtype not in INTEGER_TYPES or label.dim() not in dims:
        raise UsageError(f"Expected {what} to be int64, got {label.dtype} {tuple(label.shape)}. Convert the tensor.")


def _check_weights(weight: Tensor, count: int) -> None:
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.shape != (count,):
        got = f"{weight.dtype} {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise UsageError(f"Expected floating-point weights ({count},), got {got}. Pass one weight per example.")
    if count and not (float(weight.min()) > 0 and float(weight.sum()) < float("inf")):
        low, high = float(weight.min()), float(weight.max())
        raise UsageError(
            f"Expected finite weights above 0, got {low:g} to {high:g}. Remove invalid examples with subset(…)."
        )


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set, divided into parts.

    Args:
        name: the name of the data set
        parts: the loaded parts, which can be "train", "validation" and "test"
        preprocess: the preprocessing of the images, a name in `preprocess.names()`
        choices: the fractions, seeds and counts with which the examples were selected and split, as plain values
        source: the arguments of `load`, with which a run can load the same data again; None if `load` was not used
        notes: sentences on what was found, such as the sizes of the images, which training prints when it starts

    >>> examples = Examples(torch.zeros(3, 4), torch.tensor([0, 1, 0]), ("cat", "dog"))
    >>> pets = DataSet("pets", {"train": examples}, preprocess="none")
    >>> len(pets.train), pets.validation
    (3, None)
    >>> pets.test
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: The test part of pets was not loaded (loaded: train). Add test to parts=….
    """

    name: str
    parts: Mapping[str, Examples]
    preprocess: str = "gcn"
    choices: Mapping[str, object] = field(default_factory=dict)
    source: Mapping[str, Any] | None = None
    notes: Sequence[str] = ()

    @property
    def train(self) -> Examples:
        """The training examples."""
        return self._part("train")

    @property
    def test(self) -> Examples:
        """The test examples, which are used for neither training nor model selection."""
        return self._part("test")

    @property
    def validation(self) -> Examples | None:
        """The validation examples, or None if there is no validation part."""
        return self.parts.get("validation")

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        return next(iter(self.parts.values())).classes

    def _part(self, name: str) -> Examples:
        if name not in self.parts:
            loaded = " and ".join(self.parts)
            raise UsageError(
                f"The {name} part of {self.name} was not loaded (loaded: {loaded}). Add {name} to parts=…."
            )
        return self.parts[name]

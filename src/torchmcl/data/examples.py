from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from torchmcl.data.lazy import Lazy
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Examples:
    """Some examples of a set.

    Args:
        images: (N, C, H, W) uint8, a table (N, D) float32, or `Lazy` images such as `ImageFiles`, read when needed
        target: whole numbers, (N,) int64, or masks (N, H, W) uint8, in which 255 marks pixels that do not count
        classes: the name of each target
        group: whole numbers, (N,) int64, the class that a memory counts where it is not the target
        groups: the name of each group
        weight: (N,) floating point above 0, how often each example counts in training, in the loss and in what members
            take; once by default. Metrics count every example once

    >>> few = Examples(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0]), ("cat", "dog"))
    >>> few.subset([2, 1]).target
    tensor([0, 1])
    """

    images: Tensor | Lazy
    target: Tensor
    classes: tuple[str, ...]
    group: Tensor | None = None
    groups: tuple[str, ...] = ()
    weight: Tensor | None = None

    def __post_init__(self) -> None:
        _whole(self.target, "targets (N,) or (N, H, W)", (1, 3))
        if self.group is not None:
            _whole(self.group, "groups (N,)", (1,))
        if self.weight is not None:
            _weights(self.weight, len(self.target))
        sizes = [len(part) for part in (self.images, self.target, self.group) if part is not None]
        if len(set(sizes)) > 1:
            raise UsageError(f"Expected as many targets and groups as images, got {' and '.join(map(str, sizes))}.")
        for label, names in ((self.target, self.classes), (self.group, self.groups)):
            if label is not None:
                check_labels(label, len(names))

    def __len__(self) -> int:
        return len(self.target)

    def __repr__(self) -> str:
        return f"Examples({len(self)} of {tuple(self.images.shape[1:])}, {len(self.classes)} classes)"

    @property
    def dense(self) -> bool:
        """Whether each pixel has a target."""
        return self.target.ndim > 1

    @property
    def labels(self) -> Tensor:
        """What splits keep in proportion and a memory counts, (N,): the group, the target where there is none."""
        return (self.target if self.group is None else self.group).long()

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of `labels`."""
        return self.classes if self.group is None else self.groups

    @property
    def fingerprint(self) -> str:
        """Tells sets of examples apart by their targets and images in their order (of `Lazy` images, the first 256)."""
        images = self.images
        shown = images if isinstance(images, Tensor) else images[torch.arange(min(len(images), 256))]
        seen = sha256(shown.cpu().contiguous().numpy().tobytes())
        for part in self._labelling:
            seen.update(part)
        return seen.hexdigest()[:16]

    @property
    def label_fingerprint(self) -> str:
        """Tells sets of examples apart by their targets and weights in their order only."""
        return sha256(b"".join(self._labelling)).hexdigest()[:16]

    @property
    def _labelling(self) -> list[bytes]:
        parts = [part for part in (self.target, self.weight) if part is not None]
        return [part.cpu().contiguous().numpy().tobytes() for part in parts]

    def subset(self, index: Tensor | Sequence[int]) -> "Examples":
        """The examples at these places, (K,), in this order."""
        at = torch.as_tensor(index)
        at = at if at.numel() else at.long()  # torch makes a float tensor of []
        _whole(at, "places (K,)", (1,))
        at = at.long()
        images = self.images.subset(at) if isinstance(self.images, Lazy) else self.images[at]
        group, weight = (None if part is None else part[at] for part in (self.group, self.weight))
        return Examples(images, self.target[at], self.classes, group, self.groups, weight)


def check_labels(label: Tensor, classes: int) -> None:
    """Raise UsageError for labels (N,) or masks (N, H, W) that are no classes; 255 marks pixels that do not count."""
    known = label[label != IGNORE] if label.ndim > 1 and classes <= IGNORE else label
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise UsageError(f"Expected labels from 0 to {classes - 1}, got {int(known.min())} to {int(known.max())}.")


def _whole(label: Tensor, what: str, dims: tuple[int, ...]) -> None:
    """Refuse labels that would have to be rounded, and those of another form."""
    if not isinstance(label, Tensor):
        raise UsageError(f"Expected {what} in a tensor, got {type(label).__name__}. Use torch.tensor or from_arrays.")
    if label.dtype not in WHOLE or label.dim() not in dims:
        got = f"{label.dtype} {tuple(label.shape)}"
        raise UsageError(f"Expected {what} as whole numbers from 0 on, got {got}. Pass them as int64.")


def _weights(weight: Tensor, count: int) -> None:
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.shape != (count,):
        got = f"{weight.dtype} {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise UsageError(f"Expected a tensor of weights ({count},), floating point, got {got}. Pass one per example.")
    if count and not (float(weight.min()) > 0 and float(weight.sum()) < float("inf")):
        raise UsageError(
            f"Expected finite weights above 0, got {float(weight.min()):g} to {float(weight.max()):g}. "
            "Leave out the examples that do not count: examples.subset(…)."
        )


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set, as far as it was asked for.

    Args:
        name: what it was loaded as
        parts: "train", "test" and "validation", those that were read
        preprocess: how its images are meant to be prepared, a name in `preprocess.names()`
        choices: what was decided in reading it (splits, seeds, counts), in plain values that a report can show
        source: the arguments of `load`, by which a run folder can load the same set again; None for other sets

    >>> few = Examples(torch.zeros(3, 4), torch.tensor([0, 1, 0]), ("cat", "dog"))
    >>> pets = DataSet("pets", {"train": few}, preprocess="none")
    >>> len(pets.train), pets.validation
    (3, None)
    >>> pets.test
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected the test part of pets, only its train part was read. Ask for it in parts=….
    """

    name: str
    parts: Mapping[str, Examples]
    preprocess: str = "gcn"
    choices: Mapping[str, object] = field(default_factory=dict)
    source: Mapping[str, Any] | None = None

    @property
    def train(self) -> Examples:
        """What is trained on."""
        return self._part("train")

    @property
    def test(self) -> Examples:
        """What is never trained on nor chosen by."""
        return self._part("test")

    @property
    def validation(self) -> Examples | None:
        """What was held out of `train` to choose by, if anything was."""
        return self.parts.get("validation")

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each target."""
        return next(iter(self.parts.values())).classes

    def _part(self, name: str) -> Examples:
        if name not in self.parts:
            raise UsageError(
                f"Expected the {name} part of {self.name}, only its {' and '.join(self.parts)} part was read. "
                "Ask for it in parts=…."
            )
        return self.parts[name]

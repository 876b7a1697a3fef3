from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from hashlib import sha256
from operator import length_hint
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchmcl._utils.randomness import preserve_generators, seed_generators, seed_of
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.examples import INTEGER_TYPES, DataSet, Examples
from torchmcl.data.loader import AUGMENT, Batch
from torchmcl.data.transforms import Draw, Transform, apply_transform
from torchmcl.errors import TorchmclError, UsageError
from torchmcl.structures.values import check_finite

ITERATE = 2**34  # makes the seed of an epoch differ from the seeds of its steps


def from_loaders(
    train: Iterable[Any],
    test: Iterable[Any] | None = None,
    validation: Iterable[Any] | None = None,
    *,
    classes: Sequence[str] | None = None,
    preprocess: str = "none",
    name: str = "loaders",
) -> DataSet:
    """Create a data set from loaders, such as torch `DataLoader`s, and use their batches (x, y) unchanged.

    x is (B, C, H, W) or (B, D), uint8 or float; y contains class indices (B,). Without `classes`, y contains floats to
    predict, (B,), (B, D) or (B, T, D); the training loader is then read once to compute the units of the targets. The
    loaders determine batch size, order, workers and augmentation. Each iteration over a loader must start at the first
    batch; the number of batches may be unknown.

    Before each epoch, the global generators of torch, NumPy and Python are seeded from the seed and the epoch, so a
    `DataLoader` that shuffles without its own generator is reproducible. The examples have no index. Therefore, a run
    that stops within an epoch resumes at the start of that epoch. Sampling by class, training with several processes
    and methods that store values for individual examples (MCL, MCL-KD) raise an error. `from_dataset` has none of these
    limitations.

    Args:
        train: the loader of training batches
        test: the loader of test batches; `fit` requires it
        validation: the loader of validation batches
        classes: the name of each class; None if y contains floats to predict
        preprocess: a name in `preprocess.names()`
        name: the name of the data set

    Returns:
        A `DataSet` whose parts cannot be indexed.

    Raises:
        UsageError: if a loader cannot be iterated more than once, or its first batch has the wrong type or shape.

    >>> batches = [(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))]
    >>> from_loaders(batches, batches, classes=["cat", "dog"]).train
    External(train batches of (3,), 2 classes)
    >>> from_loaders([(torch.zeros(4, 3), torch.rand(4))]).train
    External(train batches of (3,), 1 target value)
    """
    validate_types({"preprocess": preprocess, "name": name}, from_loaders)
    preprocessing.get(preprocess)  # raises UsageError if the name is unknown
    is_list = isinstance(classes, Sequence) and not isinstance(classes, str)
    if classes is not None and not (is_list and 0 < len(set(classes)) == len(classes)):
        raise UsageError(f"Expected a list of unique class names, got {classes!r}.")
    parts = {"train": External(train, tuple(map(str, classes or ())), "train")}
    for part, loader in (("test", test), ("validation", validation)):
        if loader is not None:
            parts[part] = External(loader, parts["train"].classes, part, like=parts["train"])
    # `External` parts have the attributes of `Examples` that training and evaluation use.
    return DataSet(name, cast(Mapping[str, Examples], parts), preprocess)


@final
class External:
    """A part of a data set that a user's loader provides in batches (x, y) and that cannot be indexed.

    It contains no examples: `images` and `target` are empty tensors of the right shape and type, except that `target`
    contains the floats to predict of a training set, for their units. Its length is the number of examples in the last
    complete pass, or 0 before the first pass.
    """

    group: Tensor | None = None
    groups: tuple[str, ...] = ()
    weight: Tensor | None = None
    dense = False

    def __init__(self, loader: Any, classes: tuple[str, ...], name: str, like: "External | None" = None) -> None:
        if not isinstance(loader, Iterable) or isinstance(loader, Iterator | Tensor | str | Dataset):
            got = f"{type(loader).__name__}. Pass a DataLoader, or use data.from_dataset for a Dataset."
            raise UsageError(f"Expected a {name} loader that can be iterated more than once, got {got}")
        self.loader, self.classes, self.name, self.count = loader, classes, name, 0
        with preserve_generators():
            x, y = next(self._batches(like))
            self.images, self.target = x.new_empty(0, *x.shape[1:]), y.new_empty(0, *y.shape[1:])
            if self.continuous and like is None:
                self.target = torch.cat([y.cpu() for _, y in self])

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        D = self.target.shape[-1]
        kind = f"{D} target value{'s' * (D > 1)}" if self.continuous else f"{len(self.classes)} classes"
        return f"External({self.name} batches of {tuple(self.images.shape[1:])}, {kind})"

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._batches(self)

    @property
    def continuous(self) -> bool:
        """Whether the targets are numbers, as in regression, and not classes."""
        return not self.classes

    @property
    def fingerprint(self) -> str:
        """A hash of the classes (or the shape of floats to predict), shape, type and number of batches."""
        known = (
            self.classes or str(tuple(self.target.shape[1:])),
            tuple(self.images.shape),
            str(self.images.dtype),
            length_hint(self.loader, 0),
        )
        return sha256(repr(known).encode()).hexdigest()[:16]

    label_fingerprint = fingerprint

    def _batches(self, like: "External | None") -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate once and yield x (B, …) and y (B, …), with the shapes and the type of those of `like`."""
        number, count = 0, 0
        for number, batch in enumerate(self._raw_batches(), start=1):
            where = f"batch {number} of the {self.name} loader"
            x, y = _checked(batch, len(self.classes), where)
            for one, known in () if like is None else ((x, like.images), (y, like.target)):
                if (one.shape[1:], one.dtype) != (known.shape[1:], known.dtype):
                    expected = f"(B, {str(tuple(known.shape[1:]))[1:]} {known.dtype}"
                    got = f"{tuple(one.shape)} {one.dtype} in {where}"
                    raise UsageError(f"Expected all batches to be {expected}, got {got}. Convert the batches.")
            count += len(x)
            yield x, y
        if not number:
            raise UsageError(f"The {self.name} loader has no batches. Add examples.")
        self.count = count

    def _raw_batches(self) -> Iterator[Any]:
        """Iterate over the loader and convert its errors to UsageError."""
        number = 0
        try:
            for batch in self.loader:
                number += 1
                yield batch
        except TorchmclError:
            raise
        except Exception as problem:
            reason = (str(problem).strip().splitlines() or [""])[-1]
            if "DataLoader worker" in str(problem):  # the message already contains the worker's traceback
                problem.__traceback__ = None  # this traceback would keep all workers alive
            what = f"{type(problem).__name__}: {reason}. Saved checkpoints are kept; correct the loader and resume."
            raise UsageError(f"The {self.name} loader failed after {number} batches with {what}") from problem


@final
class ExternalLoader:
    """An iterable over the batches of an `External` part, preprocessed and on the device.

    It has the methods of `Loader` that training and evaluation use, but an epoch cannot start in the middle. In
    training, a last batch of one example is merged into the previous batch, as batch statistics need two examples.
    """

    resumable = False
    mean_weight = 1.0

    def __init__(
        self,
        examples: External,
        *,
        seed: int = 0,
        training: bool = False,
        device: str | torch.device = "cpu",
        preprocess: str | Callable[[Tensor], Tensor] = "none",
        transform: Transform | None = None,
    ) -> None:
        self.examples, self.seed, self.training, self.device = examples, seed, training, torch.device(device)
        self._preprocess = preprocessing.get(preprocess) if isinstance(preprocess, str) else preprocess
        self._transform = transform

    def __len__(self) -> int:
        return len(cast(Sized, self.examples.loader))

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(1)

    def epoch(self, number: int = 1, *, start: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch; the global generators are seeded first and not restored afterwards."""
        if start:
            raise UsageError(f"An epoch of a DataLoader must start at its first batch, got start={start}.")
        seed_generators(seed_of(self.seed, number, 0, ITERATE))
        self._set_epoch(number)
        done = 0
        for step, (x, target) in enumerate(_merge_single(self.examples) if self.training else self.examples):
            x, target, total = x.to(self.device), target.to(self.device), len(x)
            if self._transform is not None:
                draw = Draw(seed_of(self.seed, number, step, AUGMENT), total=total, device=self.device)
                x, target = apply_transform(self._transform, x, target, draw)
            index = torch.arange(done, done + total, device=self.device)
            yield Batch(self._preprocess(preprocessing.channels_last(x)), target, index, group=None, total=total)
            done += total

    def _set_epoch(self, number: int) -> None:
        """Call `set_epoch` on the sampler, the batch sampler and the data set, if they have this method."""
        for name in ("sampler", "batch_sampler", "dataset"):
            set_epoch = getattr(getattr(self.examples.loader, name, None), "set_epoch", None)
            if callable(set_epoch):
                set_epoch(number)


def _merge_single(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Merge a last batch of one example into the previous batch."""
    pending: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        pending.append(batch)
        if len(pending) > 2:
            yield pending.pop(0)
    if len(pending) == 2 and len(pending[1][0]) == 1:
        pending = [(torch.cat([pending[0][0], pending[1][0]]), torch.cat([pending[0][1], pending[1][1]]))]
    yield from pending


def _checked(batch: Any, classes: int, where: str) -> tuple[Tensor, Tensor]:
    """Check a batch and return x (B, C, H, W) or (B, D), uint8 or float32, and y (B,) int64.

    Without classes, y is (B, D) or (B, T, D) float32.
    """
    if not isinstance(batch, tuple | list) or len(batch) < 2 or not all(isinstance(one, Tensor) for one in batch[:2]):
        kind = type(batch).__name__
        raise UsageError(
            f"Expected batches (x, y) of tensors, got {kind} for {where}. Use a collate function that returns tensors."
        )
    x, y = batch[0].detach(), batch[1].detach()
    if x.dim() not in (2, 4) or not (x.dtype == torch.uint8 or x.is_floating_point()) or not x.numel():
        got = f"{tuple(x.shape)} {x.dtype} in {where}"
        raise UsageError(f"Expected x (B, C, H, W) or (B, D), uint8 or float, got {got}. Convert x in the loader.")
    y = _labels(y, len(x), classes, where) if classes else _numbers(y, len(x), where)
    if x.dtype == torch.uint8 and x.dim() == 4:
        return x, y
    if x.device.type == "cpu" and not bool(x.isfinite().all()):  # on other devices, this check would synchronize
        raise UsageError(f"Expected finite numbers, got NaN or infinity in {where}. Replace or remove them.")
    return x.float(), y


def _labels(y: Tensor, B: int, classes: int, where: str) -> Tensor:
    """Check the labels of a batch and return them as (B,) int64."""
    if tuple(y.shape) != (B,) or y.dtype not in INTEGER_TYPES:
        advice = "Omit classes to predict floats." if y.is_floating_point() else "Convert y in the loader."
        raise UsageError(f"Expected y to be integers ({B},), got {tuple(y.shape)} {y.dtype} in {where}. {advice}")
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if not 0 <= low <= high < classes:
        raise UsageError(
            f"Expected y from 0 to {classes - 1}, got {low} to {high} in {where}. Correct y, or pass all class names."
        )
    return y


def _numbers(y: Tensor, B: int, where: str) -> Tensor:
    """Check the floats to predict of a batch and return them as (B, D) or (B, T, D) float32."""
    if y.dim() not in (1, 2, 3) or len(y) != B or not y.is_floating_point() or not y.numel():
        raise UsageError(
            f"Expected y to be floats ({B},), ({B}, D) or ({B}, T, D), got {tuple(y.shape)} {y.dtype} in {where}. "
            "Convert y in the loader, or pass the names of classes."
        )
    if y.device.type == "cpu":
        try:
            check_finite(y)
        except UsageError as error:
            raise UsageError(f"{where.capitalize()}: {error}") from error
    return (y.unsqueeze(1) if y.dim() == 1 else y).float()

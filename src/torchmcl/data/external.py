"""Loaders of the caller's own, such as a torch `DataLoader`, as the parts of a data set."""

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
from torchmcl.data.examples import WHOLE, DataSet, Examples
from torchmcl.data.loader import AUGMENT, Batch
from torchmcl.data.transforms import Draw, Transform, applied
from torchmcl.errors import TorchmclError, UsageError, known_name

ITERATE = 2**34  # tells the seed of an epoch from those of its steps


def from_loaders(
    train: Iterable[Any],
    test: Iterable[Any] | None = None,
    validation: Iterable[Any] | None = None,
    *,
    classes: Sequence[str],
    preprocess: str = "none",
    name: str = "loaders",
) -> DataSet:
    """A data set of loaders, such as torch `DataLoader`s, whose batches (x, y) are taken as they come.

    x is (B, C, H, W) or (B, D), bytes or floats; y is (B,), whole numbers from 0 on. Batch size, order, workers and
    augmentation are up to the loaders. A loader must start anew whenever it is iterated; its length may be unknown.

    Before each epoch the global generators of torch, numpy and Python are seeded from seed and epoch, so a `DataLoader`
    that shuffles without a generator of its own is reproducible. Its examples have no number: a training that is
    stopped within an epoch resumes from the start of that epoch, and methods that remember single examples (MCL,
    MCL-KD), per-class sampling and several processes raise an error. `from_dataset` has none of these limits.

    Args:
        train: batches of training examples
        test: batches of test examples; `fit` needs them
        validation: batches to choose by
        classes: the name of each class
        preprocess: a name in `preprocess.names()`; none by default

    >>> batches = [(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))]
    >>> from_loaders(batches, batches, classes=["cat", "dog"]).train
    External(train batches of (3,), 2 classes)
    """
    validate_types({"preprocess": preprocess, "name": name}, from_loaders)
    known_name("preprocessing", preprocess, preprocessing.names())
    named = isinstance(classes, Sequence) and not isinstance(classes, str)
    if not named or not 0 < len(set(classes)) == len(classes):
        raise UsageError(f"Expected the names of the classes in a list, each once, got {classes!r}.")
    parts = {"train": External(train, tuple(map(str, classes)), "train")}
    for part, loader in (("test", test), ("validation", validation)):
        if loader is not None:
            parts[part] = External(loader, parts["train"].classes, part, like=parts["train"].images)
    # They have of `Examples` what training and evaluation use, and cannot be indexed.
    return DataSet(name, cast(Mapping[str, Examples], parts), preprocess)


@final
class External:
    """A part of a data set that a loader of the caller's provides, in batches (x, y), and that cannot be indexed.

    It holds no example: `images` and `target` are empty tensors of the right shape and type. Its length is the number
    of examples in the last complete pass, 0 before that.
    """

    group: Tensor | None = None
    groups: tuple[str, ...] = ()
    weight: Tensor | None = None
    dense = False

    def __init__(self, loader: Any, classes: tuple[str, ...], what: str, like: Tensor | None = None) -> None:
        if not isinstance(loader, Iterable) or isinstance(loader, Iterator | Tensor | str | Dataset):
            raise UsageError(
                f"Expected a loader as {what} that can be iterated again for each epoch, got {type(loader).__name__}. "
                "Pass a DataLoader, or use data.from_dataset for a Dataset."
            )
        self.loader, self.classes, self.what, self.seen = loader, classes, what, 0
        self.target = torch.empty(0, dtype=torch.int64)
        with preserve_generators():
            x, _ = next(self._batches(like))
        self.images = x.new_empty(0, *x.shape[1:])

    def __len__(self) -> int:
        return self.seen

    def __repr__(self) -> str:
        return f"External({self.what} batches of {tuple(self.images.shape[1:])}, {len(self.classes)} classes)"

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._batches(self.images)

    @property
    def fingerprint(self) -> str:
        """Tells loaders apart by what is known without reading them: classes, shape, type and number of batches."""
        known = (self.classes, tuple(self.images.shape), str(self.images.dtype), length_hint(self.loader, 0))
        return sha256(repr(known).encode()).hexdigest()[:16]

    @property
    def label_fingerprint(self) -> str:
        """The same."""
        return self.fingerprint

    def _batches(self, like: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass: x (B, …) of the shape and type of `like` (0, …), y (B,) int64."""
        number, seen = 0, 0
        for number, found in enumerate(self._found(), start=1):
            where = f"batch {number} of the {self.what} loader"
            x, y = _pair(found, len(self.classes), where)
            if like is not None and (x.shape[1:], x.dtype) != (like.shape[1:], like.dtype):
                raise UsageError(
                    f"Expected batches of one shape and type, (B, {str(tuple(like.shape[1:]))[1:]} {like.dtype}, got "
                    f"{tuple(x.shape)} {x.dtype} in {where}. Resize or convert them in the loader."
                )
            seen += len(x)
            yield x, y
        if not number:
            raise UsageError(f"Expected batches (x, y) from the {self.what} loader, got none. Give it examples.")
        self.seen = seen

    def _found(self) -> Iterator[Any]:
        """Whatever the loader yields; an error in it becomes one line."""
        number = 0
        try:
            for found in self.loader:
                number += 1
                yield found
        except TorchmclError:
            raise
        except Exception as problem:
            reason = (str(problem).strip().splitlines() or [""])[-1]
            if "DataLoader worker" in str(problem):  # has its traceback in the message
                problem.__traceback__ = None  # this one would keep all workers alive
            raise UsageError(
                f"Expected a {self.what} loader that does not fail, got {type(problem).__name__} after {number} "
                f"batches: {reason}. What is saved is kept; correct the loader and resume."
            ) from problem


@final
class ExternalLoader:
    """The batches of an `External` part, prepared, on the device, in the loader's own order.

    Of what `Loader` offers it has what training and evaluation use. An epoch cannot begin in the middle. In training, a
    last batch of one example is joined to the one before it, since one example has no batch statistics.
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
        self._prepare = preprocessing.apply(preprocess) if isinstance(preprocess, str) else preprocess
        self._transform = transform

    def __len__(self) -> int:
        return len(cast(Sized, self.examples.loader))

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(1)

    def epoch(self, number: int = 1, *, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch; the generators that the loader may draw from are seeded first, and not put back."""
        if start:
            raise UsageError(f"Expected to begin an epoch of a loader of your own at its first batch, got {start}.")
        seed_generators(seed_of(self.seed, number, 0, ITERATE))
        self._tell_epoch(number)
        done = 0
        for step, (x, target) in enumerate(_joined(self.examples) if self.training else self.examples):
            x, target, total = x.to(self.device), target.to(self.device), len(x)
            if self._transform is not None:
                draw = Draw(seed_of(self.seed, number, step, AUGMENT), total=total, device=self.device)
                x, target = applied(self._transform, x, target, draw)
            index = torch.arange(done, done + total, device=self.device)
            yield Batch(
                x=self._prepare(preprocessing.channels_last(x)), target=target, index=index, group=None, total=total
            )
            done += total

    def _tell_epoch(self, number: int) -> None:
        """Call `set_epoch` of samplers and data sets that have it, as is customary."""
        loader = self.examples.loader
        for part in (getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")):
            if callable(tell := getattr(part, "set_epoch", None)):
                tell(number)


def _joined(batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batches; a last one of a single example comes together with the one before it.

    >>> [x.tolist() for x, _ in _joined((part, part) for part in torch.arange(5).split(2))]
    [[0, 1], [2, 3, 4]]
    """
    held: list[tuple[Tensor, Tensor]] = []
    for batch in batches:
        held.append(batch)
        if len(held) > 2:
            yield held.pop(0)
    if len(held) == 2 and len(held[1][0]) == 1:
        held = [(torch.cat([held[0][0], held[1][0]]), torch.cat([held[0][1], held[1][1]]))]
    yield from held


def _pair(found: Any, classes: int, where: str) -> tuple[Tensor, Tensor]:
    """A batch as x (B, C, H, W) or (B, D), uint8 or float32, and y (B,) int64."""
    if not isinstance(found, tuple | list) or len(found) < 2 or not all(isinstance(one, Tensor) for one in found[:2]):
        kind = type(found).__name__
        raise UsageError(f"Expected batches (x, y) of tensors, got {kind} as {where}. Collate them in the loader.")
    x, y = found[0].detach(), found[1].detach()
    if x.dim() not in (2, 4) or not (x.dtype == torch.uint8 or x.is_floating_point()) or not x.numel():
        raise UsageError(
            f"Expected x (B, C, H, W) or (B, D) of bytes or floats, got {tuple(x.shape)} {x.dtype} in {where}. "
            "Convert it in the loader."
        )
    if tuple(y.shape) != (len(x),) or y.dtype not in WHOLE:
        raise UsageError(f"Expected y ({len(x)},) of whole numbers, got {tuple(y.shape)} {y.dtype} in {where}.")
    y = y.long()
    if not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise UsageError(
            f"Expected y from 0 to {classes - 1}, got {int(y.min())} to {int(y.max())} in {where}. Name all classes."
        )
    if x.dtype == torch.uint8 and x.dim() == 4:
        return x, y
    if x.device.type == "cpu" and not bool(x.isfinite().all()):  # on another device that would wait for it
        raise UsageError(f"Expected finite numbers, got NaN or infinity in {where}. Fill or leave them out.")
    return x.float(), y

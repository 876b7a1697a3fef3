from collections.abc import Callable, Iterator
from functools import cached_property
from pickle import PicklingError
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchmcl._utils.randomness import seed_of
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.examples import Examples
from torchmcl.data.lazy import Lazy
from torchmcl.data.strata import balanced_order
from torchmcl.data.transforms import Draw, Transform, apply_transform, transforms_each_example
from torchmcl.errors import TorchmclError, UsageError, known_name

MAX_RESIDENT_BYTES = 2 * 1024**3  # the limit for images that are kept on the device
SAMPLINGS = ("examples", "classes")
# Training steps pass the rank to `seed_of` in place of these numbers, which exceed every rank, so all seeds differ.
READ = 2**33
AUGMENT = 2**32


def inference_batch_size(device: torch.device) -> int:
    """Return a batch size for fast inference; on a CPU, batches of more than 128 examples are no faster."""
    return 128 if device.type == "cpu" else 512


class Batch(NamedTuple):
    """The examples that one process receives in one step.

    Attributes:
        x: preprocessed inputs (B, C, H, W) or (B, D), float32 unless custom preprocessing returns another type
        target: labels (B,) or masks (B, H, W), or probabilities (B, C, …) if a transform returns them
        index: the indices (B,) of the examples in the data set
        group: the groups (B,) int64, or None
        total: the number of examples in the step, summed over all processes
        weight: the weights (B,) of the examples, or None if all are 1

    >>> batch = Batch(torch.zeros(2, 3), torch.tensor([0, 1]), torch.arange(2), group=None, total=2)
    >>> batch.x.shape
    torch.Size([2, 3])
    """

    x: Tensor
    target: Tensor
    index: Tensor  # type: ignore[assignment]  # hides the method tuple.index, which a batch does not need
    group: Tensor | None
    total: int
    weight: Tensor | None = None


Needed = Callable[[int, Batch], Tensor | None]


@final
class Loader:
    """An iterable over batches of examples, preprocessed and on the device.

    The order depends only on the seed and the epoch. The loader keeps no state, so an epoch that starts at batch 100
    yields the same batches whether or not the earlier ones were read. With `shuffle`, a last batch of fewer than two
    examples per process is merged into the previous batch, because batch statistics need two examples. Without
    `shuffle`, each example appears once, in order; a process without examples in the last batch omits that batch.

    Args:
        examples: the examples
        batch_size: the number of examples in a step, summed over all processes
        seed: the seed for shuffling and augmentation
        shuffle: whether to shuffle the examples, as in training
        rank: the index of this process, which receives every `world`-th example of a step, starting at index `rank`
        world: the number of processes
        device: the device of the batches
        preprocess: a name in `preprocess.names()` or a function (B, …) -> (B, …)
        transform: a function that augments examples before preprocessing; see `transforms`
        workers: the number of processes that read `Lazy` images
        sampling: "examples" to draw each example once per epoch, or "classes" to draw all classes equally often; an
            epoch has the same length in both cases

    Raises:
        UsageError: if an argument is out of range, or if there are fewer examples than processes.

    >>> pets = Examples(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1, 1]), ("cat", "dog"))
    >>> [batch.index.tolist() for batch in Loader(pets, batch_size=2, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    >>> [batch.total for batch in Loader(pets, batch_size=2)]
    [2, 3]
    """

    resumable = True  # an epoch can start in the middle

    def __init__(
        self,
        examples: Examples,
        *,
        batch_size: int = 128,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        device: str | torch.device = "cpu",
        preprocess: str | Callable[[Tensor], Tensor] = "gcn",
        transform: Transform | None = None,
        workers: int = 0,
        sampling: str = "examples",
    ) -> None:
        least = world if shuffle else 1  # in training, each process takes part in each step
        if world < 1 or not 0 <= rank < world:
            raise UsageError(f"Expected 0 <= rank < world, got rank={rank} and world={world}.")
        if len(examples) < least:
            raise UsageError(f"Expected at least {least} examples for {world} processes, got {len(examples)}.")
        if batch_size < least:
            raise UsageError(f"Expected batch_size >= {least} for {world} processes, got {batch_size}.")
        if seed < 0 or workers < 0:
            raise UsageError(f"Expected seed >= 0 and workers >= 0, got {seed} and {workers}.")
        known_name("sampling", sampling, SAMPLINGS)
        if sampling == "classes" and (examples.labels.dim() > 1 or examples.continuous):
            kind = "numbers to predict" if examples.continuous else "masks"
            raise UsageError(f"Cannot sample by class: the examples have {kind}, not labels. Use sampling='examples'.")
        self.examples, self.seed, self.shuffle, self.sampling = examples, seed, shuffle, sampling
        self.rank, self.world, self.workers, self._transform = rank, world, workers, transform
        self.device = torch.device(device)
        self._preprocess = preprocessing.get(preprocess) if isinstance(preprocess, str) else preprocess
        self.by_example = transforms_each_example(transform)  # as `needed` of `epoch` requires
        self._sizes = _sizes(len(examples), batch_size, least=2 * world if shuffle else 1)

    def __len__(self) -> int:
        return sum(size > self.rank for size in self._sizes)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(1)

    def epoch(self, number: int = 1, *, start: int = 0, needed: Needed | None = None) -> Iterator[Batch]:
        """Iterate over the batches of an epoch, starting at batch `start`.

        `needed` maps the number of a batch and the batch without inputs, x (B, 0), to the examples to read, bool (B,),
        or None for all. The inputs of other examples are 0. This needs `by_example`: a transform that changes
        each example separately, or none.
        """
        if number < 0 or not 0 <= start <= len(self):
            raise UsageError(f"Expected epoch >= 0 and 0 <= start <= {len(self)}, got {number} and {start}.")
        batches = self._split(self._order(number), start)
        return self._read(
            number, start, batches, [self._rows(needed, at, one) for at, one in enumerate(batches, start)]
        )

    def _rows(self, needed: Needed | None, step: int, index: Tensor) -> Tensor | None:
        """Return the positions (B_read,) of the examples to read, or None for all."""
        if needed is None:
            return None
        at, (target, *optional) = index.to(self.device), self._labels
        group, weight = (None if part is None else part[at] for part in optional)
        target = target[at] if target.is_floating_point() else target[at].long()
        blank = torch.empty(len(index), 0, device=self.device)
        chosen = needed(step, Batch(blank, target, at, group, self._sizes[step], weight))
        return None if chosen is None else chosen.nonzero()[:, 0].cpu()

    def _split(self, order: Tensor, start: int) -> list[Tensor]:
        """Split an epoch (N,) into batches and return this process's part of each, starting at batch `start`."""
        return [batch[self.rank :: self.world] for batch in order.split(self._sizes)[start : len(self)]]

    def _order(self, epoch: int) -> Tensor:
        count = len(self.examples)
        if not self.shuffle:
            return torch.arange(count)
        # A generator on the CPU draws the same numbers for every device.
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        if self.sampling == "classes":
            return balanced_order(self._by_class, generator)
        return torch.randperm(count, generator=generator)

    def _read(self, epoch: int, start: int, batches: list[Tensor], read: list[Tensor | None]) -> Iterator[Batch]:
        all_targets, *optional = self._labels
        images = self._images(epoch, start, batches, read)
        for step, (index, rows, x) in enumerate(zip(batches, read, images, strict=True), start):
            index, x, total = index.to(self.device), x.to(self.device), self._sizes[step]
            target = all_targets[index]
            if self._transform is not None:
                own = torch.arange(self.rank, total, self.world)
                seed = seed_of(self.seed, epoch, step, AUGMENT)
                draw = Draw(seed, total=total, rows=own if rows is None else own[rows], device=self.device)
                x, changed = apply_transform(self._transform, x, _select(target, rows), draw)
                target = changed if rows is None else target.index_copy(0, rows.to(self.device), changed)
            group, weight = (None if part is None else part[index] for part in optional)
            target = target if target.is_floating_point() else target.long()
            x = self._preprocess(preprocessing.channels_last(x))
            if rows is not None:
                blank = preprocessing.channels_last(x.new_zeros(len(index), *x.shape[1:]))
                x = blank.index_copy_(0, rows.to(self.device), x)
            yield Batch(x, target, index, group, total, weight)

    def _images(self, epoch: int, start: int, batches: list[Tensor], read: list[Tensor | None]) -> Iterator[Tensor]:
        images = self._resident
        if isinstance(images, Tensor):
            for index, rows in zip(batches, read, strict=True):
                yield images[_select(index, rows).to(images.device)]
        elif batches:
            # Each position in the epoch has its own seed, so an example that appears twice is read with two seeds.
            generator = torch.Generator().manual_seed(seed_of(self.seed, epoch, 0, READ))
            seeds = self._split(torch.randint(2**63 - 1, (len(self.examples),), generator=generator), start)
            parts = zip(batches, seeds, read, strict=True)
            chosen = [(_select(index, rows), _select(seed, rows)) for index, seed, rows in parts]
            yield from _read_lazy(images, chosen, self.workers)

    # The tensors are moved to the device on first use, because some loaders are never used.
    @cached_property
    def _resident(self) -> Tensor | Lazy:
        images = self.examples.images
        return images if isinstance(images, Lazy) or images.nbytes >= MAX_RESIDENT_BYTES else images.to(self.device)

    @cached_property
    def _labels(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The targets, groups and weights, on the device."""
        group, weight = self.examples.group, self.examples.weight
        group = None if group is None else group.to(self.device).long()
        return self.examples.target.to(self.device), group, None if weight is None else weight.to(self.device)

    @cached_property
    def _by_class(self) -> list[Tensor]:
        """The indices of the examples of each class, excluding empty classes."""
        label = self.examples.labels.cpu()
        sizes = label.bincount()
        return list(label.argsort(stable=True).split(sizes[sizes > 0].tolist()))

    @cached_property
    def mean_weight(self) -> float:
        """The mean weight of the examples, or 1 if they have no weights."""
        return 1.0 if self.examples.weight is None else float(self.examples.weight.double().mean())


def _select(values: Tensor, rows: Tensor | None) -> Tensor:
    """Return the values (B, …) at the positions `rows`, or all if it is None."""
    return values if rows is None else values[rows.to(values.device)]


def _sizes(count: int, batch_size: int, least: int) -> list[int]:
    """Return the sizes of an epoch's batches; a last batch smaller than `least` is merged into the previous batch."""
    full, rest = divmod(count, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    if len(sizes) > 1 and sizes[-1] < least:
        sizes[-2:] = [sum(sizes[-2:])]
    return sizes


class _Batches:
    """A data set of batches of images. Errors are returned, because torch would obscure the messages of raised ones."""

    def __init__(self, images: Lazy) -> None:
        self.images = images

    def __getitem__(self, index_and_seeds: tuple[Tensor, Tensor]) -> Tensor | TorchmclError:
        try:
            return self.images.read(*index_and_seeds)
        except TorchmclError as error:
            return error


def _read_lazy(images: Lazy, batches: list[tuple[Tensor, Tensor]], workers: int) -> Iterator[Tensor]:
    """Read images (B, …) for each pair of indices (B,) and seeds (B,)."""
    # With the global generator, the random numbers of dropout would depend on whether images are read lazily.
    reader: DataLoader = DataLoader(
        _Batches(images),  # type: ignore[arg-type]
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        generator=torch.Generator(),
    )
    try:
        items = iter(reader)
    except (AttributeError, TypeError, PicklingError) as problem:  # pickling can fail if processes are not forked
        advice = "Define the class of the Dataset at the top of a module, or pass workers=0."
        raise UsageError(f"Cannot send the data to worker processes ({problem}). {advice}") from problem
    try:
        for item in items:
            if isinstance(item, TorchmclError):
                raise item
            yield item
    finally:
        del items  # ends the workers now, even if the traceback of an error refers to this frame

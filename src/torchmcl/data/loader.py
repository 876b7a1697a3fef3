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
from torchmcl.data.strata import balanced
from torchmcl.data.transforms import Draw, Transform, applied
from torchmcl.errors import TorchmclError, UsageError, known_name

RESIDENT = 2 * 1024**3  # bytes of images that are kept on the device
SAMPLINGS = ("examples", "classes")
READ = 2**33  # tells what is drawn while examples are read from what transforms draw
AUGMENT = 2**32  # tells the numbers that transforms draw from those of the step, which end in a process's rank


def at_once(device: torch.device) -> int:
    """Examples to look at together without gradient: enough for a GPU; a CPU is no faster with more than 128.

    >>> at_once(torch.device("cpu"))
    128
    """
    return 128 if device.type == "cpu" else 512


class Batch(NamedTuple):
    """What this process gets of one step.

    `x` (B, C, H, W) or (B, D), prepared, float32 unless a preprocessing of your own says otherwise; `target` (B,) or
    (B, H, W), or soft (B, C) where a transform makes it so; `index` (B,), the places in the set, and `group` (B,)
    int64; `total` is the size of the step's batch over all processes; `weight` (B,) is how often each example counts,
    None for once each.
    """

    x: Tensor
    target: Tensor
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of that name, which nobody asks a batch for
    group: Tensor | None
    total: int
    weight: Tensor | None = None


@final
class Loader:
    """Batches of examples, prepared, on the device, in an order that is a function of seed and epoch alone.

    It remembers nothing, so that epoch 7 from batch 100 on is the same whether or not what is before was read.

    `batch_size` counts the examples of a step over all processes; process `rank` of `world` takes every `world`-th of
    them, so that a training does not depend on how many processes share it. With `shuffle`, for training, a last batch
    of fewer than two examples a process is joined to the one before it, for one example has no batch statistics.
    Without, each example comes once, in order, and a process with nothing to do in the last batch ends before it.
    `preprocess` is a name in `preprocess.names()` or a function of your own, (B, …) -> (B, …); `transform` augments
    examples before that, see `transforms`; `workers` processes read images that are `Lazy`. With `shuffle` and
    `sampling="classes"`, an epoch shows as many examples as there are, but each class equally often.

    >>> few = Examples(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1, 1]), ("cat", "dog"))
    >>> [batch.index.tolist() for batch in Loader(few, batch_size=2, shuffle=False)]
    [[0, 1], [2, 3], [4]]
    >>> [batch.total for batch in Loader(few, batch_size=2)]
    [2, 3]
    """

    resumable = True  # an epoch can begin in the middle

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
        least = world if shuffle else 1  # each process takes part in each step of a training
        if world < 1 or not 0 <= rank < world:
            raise UsageError(f"Expected 0 <= rank < world, got rank {rank} of {world}.")
        if len(examples) < least:
            raise UsageError(f"Expected at least {least} examples for {world} processes, got {len(examples)}.")
        if batch_size < least:
            raise UsageError(f"Expected batches of at least {least} for {world} processes, got {batch_size}.")
        if seed < 0 or workers < 0:
            raise UsageError(f"Expected seed and workers from 0 on, got {seed} and {workers}.")
        known_name("sampling", sampling, SAMPLINGS)
        if sampling == "classes" and examples.labels.dim() > 1:
            raise UsageError("Expected labels or groups of images to sample by, got only masks. Use sampling=examples.")
        self.examples, self.seed, self.shuffle, self.sampling = examples, seed, shuffle, sampling
        self.rank, self.world, self.workers = rank, world, workers
        self.device = torch.device(device)
        self._prepare = preprocessing.apply(preprocess) if isinstance(preprocess, str) else preprocess
        self._transform = transform
        self._sizes = _sizes(len(examples), batch_size, fewest=2 * world if shuffle else 1)

    def __len__(self) -> int:
        return sum(size > self.rank for size in self._sizes)

    def __iter__(self) -> Iterator[Batch]:
        return self.epoch(1)

    def epoch(self, number: int = 1, *, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from the `start`-th on."""
        if number < 0 or not 0 <= start <= len(self):
            raise UsageError(f"Expected an epoch from 0 on and a start up to {len(self)}, got {number} and {start}.")
        batches = self._order(number).split(self._sizes)[start : len(self)]
        totals = self._sizes[start : len(self)]
        steps = [(number, start + at) for at in range(len(totals))]
        return self._read([batch[self.rank :: self.world] for batch in batches], totals, steps)

    def _augmented(self, x: Tensor, target: Tensor, total: int, step: tuple[int, int]) -> tuple[Tensor, Tensor]:
        if self._transform is None:
            return x, target
        rows = slice(self.rank, None, self.world)
        draw = Draw(seed_of(self.seed, *step, AUGMENT), total=total, rows=rows, device=self.device)
        return applied(self._transform, x, target, draw)

    def _order(self, epoch: int) -> Tensor:
        count = len(self.examples)
        if not self.shuffle:
            return torch.arange(count)
        # Drawn on the CPU: the same on every device.
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        if self.sampling == "classes":
            return balanced(self._members, generator)
        return torch.randperm(count, generator=generator)

    def _draws(self, epoch: int, start: int) -> list[Tensor]:
        """A random number below 2**63 for each example of this process's batches, (B,) each, by its place in the epoch.

        An example that comes twice in an epoch has two numbers.
        """
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch, 0, READ))
        numbers = torch.randint(2**63 - 1, (len(self.examples),), generator=generator)
        return [part[self.rank :: self.world] for part in numbers.split(self._sizes)[start : len(self)]]

    def _read(self, batches: list[Tensor], totals: list[int], steps: list[tuple[int, int]]) -> Iterator[Batch]:
        for index, images, total, step in zip(batches, self._images(batches, steps), totals, steps, strict=True):
            index = index.to(self.device)
            x, target = self._augmented(images.to(self.device), self._target[index], total, step)
            group = None if self._group is None else self._group[index].long()
            weight = None if self._weight is None else self._weight[index]
            target = target if target.is_floating_point() else target.long()
            yield Batch(self._prepare(preprocessing.channels_last(x)), target, index, group, total, weight)

    def _images(self, batches: list[Tensor], steps: list[tuple[int, int]]) -> Iterator[Tensor]:
        images = self._resident
        if isinstance(images, Tensor):
            for index in batches:
                yield images[index.to(images.device)]
        elif batches:
            yield from _read_lazily(images, list(zip(batches, self._draws(*steps[0]), strict=True)), self.workers)

    # Moved when first asked for: not every loader is used.
    @cached_property
    def _resident(self) -> Tensor | Lazy:
        images = self.examples.images
        return images if isinstance(images, Lazy) or images.nbytes >= RESIDENT else images.to(self.device)

    @cached_property
    def _members(self) -> list[Tensor]:
        """The places of the examples of each class that has any."""
        label = self.examples.labels.cpu()
        sizes = label.bincount()
        return list(label.argsort(stable=True).split(sizes[sizes > 0].tolist()))

    @cached_property
    def _target(self) -> Tensor:
        return self.examples.target.to(self.device)

    @cached_property
    def _group(self) -> Tensor | None:
        return None if self.examples.group is None else self.examples.group.to(self.device)

    @cached_property
    def _weight(self) -> Tensor | None:
        return None if self.examples.weight is None else self.examples.weight.to(self.device)

    @cached_property
    def mean_weight(self) -> float:
        """The mean weight of the examples, 1 where they have none: what a batch's weight is compared with."""
        return 1.0 if self.examples.weight is None else float(self.examples.weight.double().mean())


def _sizes(count: int, batch_size: int, fewest: int) -> list[int]:
    """The sizes of an epoch's batches; a last one below `fewest` is joined to the one before it.

    >>> _sizes(7, 3, fewest=1), _sizes(7, 3, fewest=2)
    ([3, 3, 1], [3, 4])
    """
    whole, rest = divmod(count, batch_size)
    sizes = [batch_size] * whole + [rest] * (rest > 0)
    if len(sizes) > 1 and sizes[-1] < fewest:
        sizes[-2:] = [sum(sizes[-2:])]
    return sizes


class _Batches:
    """Images as a data set whose items are batches; an error comes as an item, for torch would bury its message."""

    def __init__(self, images: Lazy) -> None:
        self.images = images

    def __getitem__(self, asked: tuple[Tensor, Tensor]) -> Tensor | TorchmclError:
        try:
            return self.images.read(*asked)
        except TorchmclError as error:
            return error


def _read_lazily(images: Lazy, batches: list[tuple[Tensor, Tensor]], workers: int) -> Iterator[Tensor]:
    """Images (B, …) at places (B,), with a random number (B,) for each."""
    # Its own generator, or each epoch would draw from torch's global one, and dropout would depend on where data is.
    reader: DataLoader = DataLoader(
        _Batches(images),  # type: ignore[arg-type]
        sampler=batches,
        batch_size=None,
        num_workers=workers,
        generator=torch.Generator(),
    )
    try:
        items = iter(reader)
    except (AttributeError, TypeError, PicklingError) as problem:  # where processes are not forked
        raise UsageError(
            f"Expected images that can be sent to worker processes, got {type(problem).__name__}: {problem}. "
            "Define the class of the Dataset at the top of a module, or pass workers=0."
        ) from problem
    try:
        for found in items:
            if isinstance(found, TorchmclError):
                raise found
            yield found
    finally:
        del items  # ends the workers now, although the traceback of an error would keep them

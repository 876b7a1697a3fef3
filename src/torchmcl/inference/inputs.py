"""Whatever holds examples -> batches as a model reads them: tensors, arrays, images, paths, loaders."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from os import PathLike
from reprlib import repr as shown
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.validation import validate_types
from torchmcl.data.arrays import as_array, dense
from torchmcl.data.examples import DataSet, Examples, check_labels
from torchmcl.data.image_files import pixels, read_image
from torchmcl.data.lazy import Lazy
from torchmcl.data.loader import Batch, Loader
from torchmcl.errors import UsageError
from torchmcl.serialization.model_config import ModelConfig

DEEPEST = 64  # axes of an array; a list may hold itself


def batches(x: Any, model_config: ModelConfig, size: int) -> Iterator[Tensor]:
    """Examples in any form -> (B, *shape) with B up to `size`, of the model's type, not yet prepared.

    One example or many, as a tensor, an array, nested lists of numbers; one image or many as PIL's or as paths; a torch
    `Dataset`; an iterable of any of these, or of (x, …) as loaders give. Only what is asked for is read.

    >>> model_config = ModelConfig("ie", 2, ("cat", "dog"), "simple_cnn", (3, 32, 32), "gcn")
    >>> [batch.shape[0] for batch in batches(np.zeros((5, 32, 32, 3), dtype=np.uint8), model_config, 2)]
    [2, 2, 1]
    """
    validate_types({"size": size}, batches)
    if size < 1:
        raise UsageError(f"Expected batches of at least 1 example, got batch_size={size}.")
    x = _images(x)
    if isinstance(x, Lazy):
        for index in torch.arange(len(x)).split(size):
            yield as_examples(x[index], model_config)
    elif isinstance(x, Tensor | np.ndarray) or _is_numbers(x):
        # Type and values batch by batch: what is too large to hold twice need not be.
        examples = _examples(x, model_config)
        for start in range(0, len(examples), size):
            yield _typed(examples[start : start + size], model_config.dtype)
    elif _is_image(x):
        yield _read([x], model_config)
    elif isinstance(x, Dataset) and not isinstance(x, IterableDataset):
        yield from batches(DataLoader(x, batch_size=size, generator=torch.Generator()), model_config, size)
    elif isinstance(x, Iterable) and not isinstance(x, DataSet | Mapping):
        yield from _iterated(iter(x), model_config, size)
    else:
        raise UsageError(f"Expected tensors, arrays, images, paths, or a loader of them, got {type(x).__name__}.")


def pairs(x: Any, model_config: ModelConfig, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Labelled examples in any form -> (B, *shape) and target (B, …), with B up to `size`.

    `Examples`, a `DataSet` with a validation part, a `Loader`, a tuple (x, y), or an iterable of (x, y) batches.
    """
    if isinstance(x, DataSet):
        if x.validation is None:
            raise UsageError(f"Expected {x.name} with a validation part, it has none. Load it with validation=0.1.")
        x = x.validation
    if isinstance(x, Loader):
        x = x.examples
    if isinstance(x, Examples):
        if x.classes != model_config.classes:
            raise UsageError(f"Expected examples of the model's {len(model_config.classes)} classes, got {x.classes}.")
        x = (x.images, x.target)
    one = isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], tuple | list)
    for pair in [x] if one else _batches_of_pairs(x, size):
        target = _labels(pair[1])
        done = 0
        for batch in batches(pair[0], model_config, size):
            yield batch, _target(target[done : done + len(batch)], batch, model_config)
            done += len(batch)
        if done != len(target):
            raise UsageError(f"Expected a label for each example, got {len(target)} for {done}.")


def _images(x: Any) -> Any:
    """The images of a `Loader` or of `Examples`, as they were read; anything else unchanged."""
    if isinstance(x, Loader):  # its batches are prepared already, perhaps for another model
        x = x.examples
    return x.images if isinstance(x, Examples) else x


def as_examples(x: Any, model_config: ModelConfig) -> Tensor:
    """One example or a batch, channels first or last -> (B, *shape) of the model's type."""
    return _typed(_examples(x, model_config), model_config.dtype)


def _examples(x: Any, model_config: ModelConfig) -> Tensor:
    """The same, of the type it has."""
    x = _shaped(dense(x.detach(), "examples") if isinstance(x, Tensor) else _tensor(x), model_config.shape)
    if not len(x):
        raise UsageError("Expected at least one example, got none.")
    return x


def _shaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Find the axes by their sizes: a batch or one, channels first, last, or, of grey, not there at all."""
    if tuple(x.shape[1:]) == shape:
        return x
    if tuple(x.shape) == shape:
        return x[None]
    if len(shape) == 3:
        channels, height, width = shape
        for axes, found in ((x.shape[1:], x), (x.shape, x[None])):
            if tuple(axes) == (height, width, channels):
                return found.permute(0, 3, 1, 2)
            if (1, *axes) == shape:
                return found[:, None]
    raise UsageError(f"Expected examples (B, {str(shape)[1:]}, got {tuple(x.shape)}.")


def _typed(x: Tensor, dtype: str) -> Tensor:
    if dtype == "float32":
        if x.is_complex():
            raise UsageError(f"Expected real numbers, got {str(x.dtype)[6:]}.")
        x = x.float()
        if not bool(x.isfinite().all()):
            raise UsageError("Expected finite numbers, got NaN or infinity. Fill or remove them.")
        return x
    if x.dtype == torch.uint8:
        return x
    if x.is_floating_point() or x.is_complex() or not _are_bytes(x):
        raise UsageError(
            "Expected images as they were read, whole numbers from 0 to 255, for the model prepares them itself; "
            f"got {str(x.dtype)[6:]}."
        )
    return x.to(torch.uint8)


def _are_bytes(x: Tensor) -> bool:
    x = x.long()  # torch does not compare all types of whole numbers
    return 0 <= int(x.min()) <= int(x.max()) <= 255


def _tensor(x: Any) -> Tensor:
    try:
        x = as_array(x, "an array")
    except UsageError:
        raise
    except (ValueError, OverflowError) as error:
        raise UsageError("Expected rows of numbers of one length, got different ones.") from error
    if x.dtype.kind not in "biuf":
        raise UsageError(f"Expected numbers, got an array of {x.dtype}.")
    check_memory("an array", x.nbytes)
    plain = x.dtype.newbyteorder("=") if x.dtype.kind in "bf" or x.dtype.itemsize == 1 else np.dtype(np.int64)
    plain = np.dtype(np.float64) if x.dtype.kind == "f" and x.dtype.itemsize > 8 else plain
    return torch.from_numpy(np.require(x, plain, ["C", "W"]))


def _iterated(items: Iterator[Any], model_config: ModelConfig, size: int) -> Iterator[Tensor]:
    """Batches one by one; single images are gathered."""
    for first in items:
        if _is_image(first):
            # The rest of a chunk must be images too: whatever else comes is refused where it is read.
            yield _read([first, *islice(items, size - 1)], model_config)
        elif isinstance(first, Batch):
            raise UsageError("Expected examples as they were read, got prepared batches. Pass the Loader itself.")
        else:
            inside = isinstance(first, tuple | list) and len(first) > 0 and not _is_numbers(first)
            yield from batches(first[0] if inside else first, model_config, size)


def _batches_of_pairs(x: Any, size: int) -> Iterable[Any]:
    if isinstance(x, Dataset) and not isinstance(x, IterableDataset):
        x = DataLoader(x, batch_size=size, generator=torch.Generator())
    if not isinstance(x, Iterable) or isinstance(x, Tensor | np.ndarray | str):
        raise UsageError(f"Expected labelled examples, such as (x, y) or a loader of them, got {type(x).__name__}.")
    for pair in x:
        if not isinstance(pair, tuple | list) or len(pair) < 2 or isinstance(pair, Batch):
            raise UsageError(f"Expected batches (x, y) of examples as they were read, got {type(pair).__name__}.")
        yield pair


def _labels(y: Any) -> Tensor:
    try:
        read = dense(y.detach(), "labels") if isinstance(y, Tensor) else np.array(as_array(y, "labels"))
        target = torch.as_tensor(read)
    except UsageError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"Expected whole numbers as labels, got {shown(y)}.") from error
    if not target.ndim:
        raise UsageError(f"Expected a label for each example, got one alone: {shown(y)}.")
    return target


def _target(target: Tensor, batch: Tensor, model_config: ModelConfig) -> Tensor:
    expected = (len(batch), *(model_config.shape[1:] if model_config.dense else ()))
    if tuple(target.shape) != expected or target.is_floating_point() or target.is_complex():
        raise UsageError(f"Expected whole numbers {expected} as labels, got {tuple(target.shape)} of {target.dtype}.")
    target = target.long().cpu()
    check_labels(target, len(model_config.classes))
    return target


def _read(images: list[Any], model_config: ModelConfig) -> Tensor:
    """Paths and PIL images -> (B, C, H, W) uint8."""
    if len(model_config.shape) != 3 or model_config.dtype != "uint8":
        raise UsageError(
            f"Expected numbers of shape {model_config.shape}, which the model was trained on, got an image."
        )
    channels, *size = model_config.shape
    if channels not in (1, 3):
        raise UsageError(
            f"Expected numbers of shape {model_config.shape}, for images have 1 or 3 channels, got an image."
        )
    return torch.stack([torch.tensor(_pixels(image, size, channels)) for image in images])


def _pixels(image: Any, size: list[int], channels: int) -> NDArray[np.uint8]:
    if isinstance(image, str | PathLike):
        return read_image(image, size, channels)
    if not _is_image(image):
        raise UsageError(f"Expected images and paths alone, got a {type(image).__name__} among them.")
    return pixels(image, size, channels)


def _is_image(x: Any) -> bool:
    if isinstance(x, str | PathLike):
        return True
    if isinstance(x, Tensor | np.ndarray | list | tuple):
        return False
    from PIL.Image import Image

    return isinstance(x, Image)


def _is_numbers(x: Any) -> bool:
    """Whether these are nested lists of numbers, by the first of them."""
    for _ in range(DEEPEST):
        if not isinstance(x, list | tuple) or not len(x):
            return False
        if isinstance(x[0], int | float | np.number):
            return True
        x = x[0]
    raise UsageError(f"Expected examples, got lists in lists, more than {DEEPEST} levels deep.")

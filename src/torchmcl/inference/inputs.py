"""Conversion of examples in any form (tensors, arrays, images, paths, loaders) to batches for a model."""

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
from torchmcl.data.arrays import as_array, check_dense
from torchmcl.data.examples import DataSet, Examples, check_labels, check_values
from torchmcl.data.image_files import image_array, read_image
from torchmcl.data.lazy import Lazy
from torchmcl.data.loader import Batch, Loader
from torchmcl.errors import UsageError
from torchmcl.serialization.model_config import ModelConfig

MAX_DEPTH = 64  # the maximum depth of nested lists, because a list can contain itself


def batches(x: Any, model_config: ModelConfig, size: int) -> Iterator[Tensor]:
    """Yield batches (B, *shape) of the model's data type, before preprocessing; examples are read on demand.

    Args:
        x: one or several examples as a tensor, an array or nested lists of numbers; one or several PIL images or paths;
            `Examples`; a torch `Dataset`; or an iterable, such as a loader, of any of these or of tuples (x, …)
        model_config: configuration of the model, which determines the shape and type of an example
        size: maximum number of examples per batch

    >>> model_config = ModelConfig("ie", 2, ("cat", "dog"), "simple_cnn", (3, 32, 32), "gcn")
    >>> [batch.shape[0] for batch in batches(np.zeros((5, 32, 32, 3), dtype=np.uint8), model_config, 2)]
    [2, 2, 1]
    """
    validate_types({"size": size}, batches)
    if size < 1:
        raise UsageError(f"Expected batch_size >= 1, got {size}.")
    x = x.examples if isinstance(x, Loader) else x  # batches of a loader are preprocessed, possibly for another model
    x = x.images if isinstance(x, Examples) else x
    if isinstance(x, Lazy):
        for index in torch.arange(len(x)).split(size):
            yield _typed(_shaped(x[index], model_config.shape), model_config.dtype)
    elif isinstance(x, Tensor | np.ndarray) or _is_numbers(x):
        examples = _shaped(x, model_config.shape)
        for start in range(0, len(examples), size):  # converted per batch, to avoid a second copy of a large array
            yield _typed(examples[start : start + size], model_config.dtype)
    elif _is_image(x):
        yield _read([x], model_config)
    elif isinstance(x, Dataset) and not isinstance(x, IterableDataset):
        yield from batches(DataLoader(x, batch_size=size, generator=torch.Generator()), model_config, size)
    elif isinstance(x, Iterable) and not isinstance(x, DataSet | Mapping):
        yield from _iterated(iter(x), model_config, size)
    else:
        raise UsageError(f"Expected tensors, arrays, images, paths, or a loader of these, got {type(x).__name__}.")


def labelled_batches(x: Any, model_config: ModelConfig, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of labelled examples: x (B, *shape) before preprocessing, and labels (B, …).

    Args:
        x: `Examples`, a `DataSet` with a validation part, a `Loader`, a tuple (x, y), or an iterable of batches (x, y)
        model_config: configuration of the model, which determines the shape and type of an example
        size: maximum number of examples per batch
    """
    if isinstance(x, DataSet):
        if x.validation is None:
            raise UsageError(f"{x.name} has no validation part. Load the data with validation=0.1.")
        x = x.validation
    x = x.examples if isinstance(x, Loader) else x
    if isinstance(x, Examples):
        if x.continuous != bool(model_config.targets):
            kinds = ("classes", "floats")[:: -1 if x.continuous else 1]
            raise UsageError(f"The model was trained to predict {kinds[1]}, but the targets are {kinds[0]}.")
        if x.classes != model_config.classes:
            raise UsageError(f"Expected examples of the model's {len(model_config.classes)} classes, got {x.classes}.")
        x = (x.images, x.target)
    is_pair = isinstance(x, tuple) and len(x) == 2 and not isinstance(x[0], tuple | list)
    for pair in [x] if is_pair else _pairs(x, size):
        target = _labels(pair[1])
        done = 0
        for batch in batches(pair[0], model_config, size):
            yield batch, _target(target[done : done + len(batch)], batch, model_config)
            done += len(batch)
        if done != len(target):
            raise UsageError(f"Expected one label per example, got {len(target)} labels for {done} examples.")


def _shaped(x: Any, shape: tuple[int, ...]) -> Tensor:
    """Convert an example or a batch to (B, *shape). Channels can be first or last; gray images need no channel axis."""
    x = check_dense(x.detach(), "examples") if isinstance(x, Tensor) else _tensor(x)
    if x.ndim and not len(x):
        raise UsageError("Expected at least one example, got none.")
    for batch in (x, x[None]):
        axes = tuple(batch.shape[1:])
        if axes == shape:
            return batch
        if len(shape) == 3 and axes == (*shape[1:], shape[0]):
            return batch.permute(0, 3, 1, 2)
        if len(shape) == 3 and (1, *axes) == shape:
            return batch[:, None]
    raise UsageError(f"Expected examples of shape (B, {str(shape)[1:]}, got {tuple(x.shape)}.")


def _typed(x: Tensor, dtype: str) -> Tensor:
    """Convert a batch to the model's data type."""
    if dtype == "float32":
        if x.is_complex():
            raise UsageError(f"Expected real numbers, got {str(x.dtype)[6:]}.")
        x = x.float()
        if not bool(x.isfinite().all()):
            raise UsageError("Expected finite numbers, got NaN or infinity. Replace or remove these values.")
        return x
    if x.dtype == torch.uint8:
        return x
    # The values are converted to int64 because torch cannot compare some integer types.
    if x.is_floating_point() or x.is_complex() or not 0 <= int(x.long().min()) <= int(x.long().max()) <= 255:
        raise UsageError(f"Expected integer pixel values from 0 to 255, got {str(x.dtype)[6:]}. Pass raw images.")
    return x.to(torch.uint8)


def _tensor(x: Any) -> Tensor:
    try:
        x = as_array(x, "an array")
    except UsageError:
        raise
    except (ValueError, OverflowError) as error:
        raise UsageError("Expected rows of equal length, got rows of different lengths.") from error
    if x.dtype.kind not in "biuf":
        raise UsageError(f"Expected numbers, got an array of {x.dtype}.")
    check_memory("an array", x.nbytes)
    plain = x.dtype.newbyteorder("=") if x.dtype.kind in "bf" or x.dtype.itemsize == 1 else np.dtype(np.int64)
    plain = np.dtype(np.float64) if x.dtype.kind == "f" and x.dtype.itemsize > 8 else plain
    return torch.from_numpy(np.require(x, plain, ["C", "W"]))


def _iterated(items: Iterator[Any], model_config: ModelConfig, size: int) -> Iterator[Tensor]:
    """Yield batches of the items of an iterable; single images are collected into batches."""
    for first in items:
        if _is_image(first):
            # The other items of the batch must be images too; `_pixels` rejects anything else.
            yield _read([first, *islice(items, size - 1)], model_config)
        elif isinstance(first, Batch):
            raise UsageError("Expected examples before preprocessing, got preprocessed batches. Pass the Loader.")
        else:
            is_tuple = isinstance(first, tuple | list) and len(first) > 0 and not _is_numbers(first)
            yield from batches(first[0] if is_tuple else first, model_config, size)


def _pairs(x: Any, size: int) -> Iterable[Any]:
    if isinstance(x, Dataset) and not isinstance(x, IterableDataset):
        x = DataLoader(x, batch_size=size, generator=torch.Generator())
    if not isinstance(x, Iterable) or isinstance(x, Tensor | np.ndarray | str):
        raise UsageError(f"Expected labelled examples, such as (x, y) or a loader of pairs, got {type(x).__name__}.")
    for pair in x:
        if not isinstance(pair, tuple | list) or len(pair) < 2 or isinstance(pair, Batch):
            raise UsageError(f"Expected batches (x, y) before preprocessing, got {type(pair).__name__}.")
        yield pair


def _labels(y: Any) -> Tensor:
    try:
        values = check_dense(y.detach(), "labels") if isinstance(y, Tensor) else np.array(as_array(y, "labels"))
        target = torch.as_tensor(values)
    except UsageError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"Expected integer labels, got {shown(y)}.") from error
    if not target.ndim:
        raise UsageError(f"Expected one label per example, got a single label: {shown(y)}.")
    return target


def _target(target: Tensor, batch: Tensor, model_config: ModelConfig) -> Tensor:
    """Check the targets of a batch and convert them to int64, or float32 if they are continuous, on the CPU."""
    if model_config.targets:
        return _values(target, model_config.targets)
    expected = (len(batch), *(model_config.shape[1:] if model_config.dense else ()))
    if tuple(target.shape) != expected or target.is_floating_point() or target.is_complex():
        raise UsageError(f"Expected integer labels of shape {expected}, got {target.dtype} {tuple(target.shape)}.")
    target = target.long().cpu()
    check_labels(target, len(model_config.classes))
    return target


def _values(target: Tensor, D: int) -> Tensor:
    target = target[:, None] if target.ndim == 1 else target
    if target.is_complex() or target.dtype == torch.bool or target.shape[-1] != D:
        got = f"{target.dtype} {tuple(target.shape)}"
        raise UsageError(f"Expected numbers (N, {D}) or (N, T, {D}) as targets, got {got}.")
    check_values(target := target.float().cpu())
    return target


def _read(images: list[Any], model_config: ModelConfig) -> Tensor:
    """Read paths and PIL images as a batch (B, C, H, W) uint8."""
    shape = model_config.shape
    if len(shape) != 3 or model_config.dtype != "uint8" or shape[0] not in (1, 3):
        raise UsageError(f"The model was trained on examples of shape {shape}, not on images. Pass arrays.")
    return torch.stack([torch.tensor(_pixels(image, shape[1:], shape[0])) for image in images])


def _pixels(image: Any, size: tuple[int, ...], channels: int) -> NDArray[np.uint8]:
    if isinstance(image, str | PathLike):
        return read_image(image, size, channels)
    if not _is_image(image):
        raise UsageError(f"Expected only images and paths, but the list also contains {type(image).__name__}.")
    return image_array(image, size, channels)


def _is_image(x: Any) -> bool:
    if isinstance(x, str | PathLike):
        return True
    if isinstance(x, Tensor | np.ndarray | list | tuple):
        return False
    from PIL.Image import Image

    return isinstance(x, Image)


def _is_numbers(x: Any) -> bool:
    """Return whether `x` is a nested list of numbers, judged by its first element."""
    for _ in range(MAX_DEPTH):
        if not isinstance(x, list | tuple) or not len(x):
            return False
        if isinstance(x[0], int | float | np.number):
            return True
        x = x[0]
    raise UsageError(f"Expected examples, got lists nested more than {MAX_DEPTH} levels deep.")

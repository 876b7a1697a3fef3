from collections.abc import Sequence
from itertools import islice
from reprlib import repr as shown
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchmcl._utils.memory_limit import check_memory
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess as preprocessing
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.selection import select
from torchmcl.errors import UsageError

MAX_CLASSES = 100_000
MAX_VALUE = 1e15  # of a number to predict, so that its square is finite in float32


def from_arrays(
    x: Any,
    y: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    classes: Sequence[str] | None = None,
    *,
    test: float = 0.2,
    validation: float = 0.0,
    limit: int | None = None,
    seed: int = 0,
    preprocess: str | None = None,
    name: str = "arrays",
) -> DataSet:
    """Create a data set from arrays or tensors in memory, or from a torch `Dataset` or `DataLoader` of pairs (x, y).

    A `Dataset` or `DataLoader` is read into memory once. To stream it, use `from_dataset` or `from_loaders`.

    Args:
        x: images (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or float; a table (N, D); or a `Dataset` or
            `DataLoader` of pairs, in which case `y` is omitted. Tensors with four axes are always (N, C, H, W)
        y: labels (N,), integers or strings; or floats to predict, (N,) or (N, D), or (N, T, D) padded with rows of NaN
            for several targets per example
        x_test: the test examples, in the same form as `x`
        y_test: the test labels
        classes: the names of the classes 0, 1, … if `y` contains integers, or the order of the classes if `y` contains
            strings; by default the sorted values of `y`
        test: the fraction of each class to hold out for testing if there is no `x_test`; 0 for no test part
        validation: the fraction of each class to hold out for validation after `limit` is applied
        limit: the maximum number of training examples; each class keeps its proportion
        seed: the seed for choosing the examples for `test`, `limit` and `validation`
        preprocess: a name in `preprocess.names()`, or steps joined by "+"; by default "gcn" for uint8, "none" for
            float, and "standardize" for a table with floats to predict
        name: the name of the data set

    Returns:
        A `DataSet` in memory.

    Raises:
        UsageError: if an array has the wrong shape, type or values.

    >>> flowers = from_arrays([[5.1, 3.5], [6.2, 2.9], [4.9, 3.1], [5.9, 3.0]], ["rose", "tulip", "rose", "tulip"])
    >>> flowers.train, flowers.classes
    (Examples(2 of (2,), 2 classes), ('rose', 'tulip'))
    >>> from_arrays([[1.0], [2.0], [3.0], [4.0], [5.0]], [1.5, 2.5, 3.5, 4.5, 5.5]).train
    Examples(4 of (1,), 1 target value)
    """
    options: dict[str, Any] = {"test": test, "validation": validation, "limit": limit, "seed": seed}
    validate_types({**options, "preprocess": preprocess, "name": name}, from_arrays)
    if preprocess is not None:
        preprocessing.split_whitening(preprocess)  # raises UsageError if the name is unknown
    x, y = _arrays(x, y, "x and y")
    target, _, names = as_targets(y, "y", classes)
    parts = {"train": Examples(_images(x, "x"), target, names)}
    if x_test is not None or y_test is not None:
        x_test, y_test = _arrays(x_test, y_test, "x_test and y_test")
        target, _, _ = as_targets(y_test, "y_test", classes, like=parts["train"])
        parts["test"] = Examples(_images(x_test, "x_test"), target, names)
        train, held_out = (tuple(part.images.shape[1:]) for part in parts.values())
        if train != held_out or parts["train"].images.dtype != parts["test"].images.dtype:
            raise UsageError(f"Expected x and x_test to have the same shape and type, got {train} and {held_out}.")
    return select(DataSet(name, parts, preprocess or default_preprocess(parts["train"])), **options)


def default_preprocess(examples: Examples) -> str:
    """Return the default preprocessing; features of tables with numbers to predict often have different units."""
    table = len(examples.images.shape) == 2
    return preprocessing.STANDARDIZE if examples.continuous and table else preprocessing.default(examples.images.dtype)


def _arrays(x: Any, y: Any, what: str) -> tuple[Any, Any]:
    """Convert x and y to tensors or arrays and check their lengths; a `Dataset` or `DataLoader` is read completely."""
    if isinstance(x, Dataset | DataLoader) and y is None:
        x, y = _read(x if isinstance(x, DataLoader) else DataLoader(x, batch_size=256, generator=torch.Generator()))
    x, y = _array(x, what), _array(y, what)
    check_memory(what, x.nbytes + y.nbytes)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(x) == 0:
        raise UsageError(
            f"Expected {what} to be non-empty and of the same length, got {tuple(x.shape)} and {tuple(y.shape)}."
        )
    return x, y


def check_dense(x: Tensor, what: str) -> Tensor:
    """Return the tensor; raise UsageError if it is sparse, quantized or nested, or on the meta device."""
    if x.layout != torch.strided or x.is_meta or x.is_quantized or x.is_nested:
        kind = "quantized" if x.is_quantized else "nested" if x.is_nested else str(x.layout)[6:]
        raise UsageError(f"Expected {what} to be a dense tensor with data, got a {kind} tensor on {x.device}.")
    return x


def _read(loader: DataLoader) -> tuple[Tensor, Any]:
    try:
        batches = [(batch[0], batch[1]) for batch in loader]
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(f"Reading batches (x, y) failed with {type(error).__name__}: {error}.") from error
    xs, ys = zip(*batches, strict=True) if batches else ((), ())
    if not xs or not all(isinstance(part, Tensor) for part in xs):
        raise UsageError("The loader returned no batches (x, y) with a tensor x. Check its data set.")
    label = torch.cat(ys) if isinstance(ys[0], Tensor) else [each for part in ys for each in part]
    return torch.cat(xs), label


def as_array(values: Any, what: str) -> NDArray[Any]:
    """Convert values to a NumPy array; raise UsageError if any are masked, or if they do not fit in memory."""
    if np.ma.is_masked(values):  # NumPy would ignore the mask
        raise UsageError(f"Masked values in {what} are not supported. Fill or remove them.")
    if not hasattr(values, "__array__"):
        try:
            check_memory(what, 8 * len(values))
        except TypeError:
            pass  # a single value, or an object without a length
        except OverflowError as error:
            raise UsageError(f"Not enough memory for {what}: {shown(values)}. Pass fewer values.") from error
    return np.asarray(values)


def _array(values: Any, what: str) -> Any:
    """Convert values to a dense tensor on the CPU or to an array of numbers or strings."""
    if isinstance(values, Tensor):
        return check_dense(values.detach(), what).cpu()
    try:
        array = as_array(values, what)
    except UsageError:
        raise
    except ValueError as error:  # the sequences are ragged
        raise UsageError(f"Expected {what} to be arrays or tensors, got sequences of different lengths.") from error
    if array.dtype.kind == "O":
        if array.ndim != 1 or not len(array) or not all(isinstance(each, str) for each in array):
            raise UsageError(f"Expected numbers or strings in {what}, got Python objects.")
        array = array.astype(str)
    elif array.dtype.kind in "US" and isinstance(values, list | tuple) and not _all_strings(values):
        raise UsageError(f"Expected numbers or strings in {what}, got both. Convert all values to strings.")
    return array


def _all_strings(values: Sequence[Any]) -> bool:
    """Return whether all values are strings or all are bytes; NumPy would convert a mixture to strings."""
    flat = np.array(values, dtype=object).ravel()
    return any(all(isinstance(value, kind) for value in flat) for kind in (str, bytes))


def _images(x: Tensor | NDArray[Any], what: str) -> Tensor:
    """Convert x to images (N, C, H, W) uint8 or float32, or to a table (N, D) float32."""
    channels_last = isinstance(x, np.ndarray) and x.ndim == 4 and _channels_last(x.shape, what)
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "biuf":
            raise UsageError(f"Expected numbers in {what}, got {x.dtype}.")
        x = x.astype(np.float64 if x.dtype.kind == "f" and x.dtype.itemsize > 8 else x.dtype.newbyteorder("="))
        if x.dtype == np.uint64 and x.size and int(x.max()) >= 2**63:  # int64 would make these values negative
            raise UsageError(f"Expected numbers below 2**63 in {what}, got {int(x.max())}. Pass floats.")
        # torch supports few unsigned integer types.
        x = torch.from_numpy(x if x.dtype.kind in "bf" or x.dtype == np.uint8 else x.astype(np.int64))
    if x.dim() not in (2, 3, 4) or x.numel() == 0:
        raise UsageError(f"Expected {what} to be images (N, C, H, W) or a table (N, D), got {tuple(x.shape)}.")
    check_memory(what, 4 * x.numel())
    if x.is_complex():
        raise UsageError(f"Expected real numbers in {what}, got {x.dtype}.")
    if x.dim() == 2 or x.is_floating_point():
        x = x.float()
        if not bool(x.isfinite().all()):
            raise UsageError(f"Expected finite numbers in {what}, got NaN or infinity. Replace or remove them.")
    elif not 0 <= int((x := x.long()).min()) <= int(x.max()) <= 255:  # torch cannot compare some integer types
        raise UsageError(f"Expected pixel values from 0 to 255 in {what}, got {int(x.min())} to {int(x.max())}.")
    else:
        x = x.to(torch.uint8)
    if x.dim() == 3:
        x = x[:, None]
    return (x.permute(0, 3, 1, 2) if channels_last else x).contiguous()


def _channels_last(shape: tuple[int, ...], what: str) -> bool:
    """Return whether the last axis contains the channels: it has size 1 or 3, but the second axis does not."""
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        raise UsageError(f"The channel axis of {what} {shape} is ambiguous. Pass a tensor (N, C, H, W).")
    return last


def as_targets(
    y: Any, what: str, classes: Sequence[str] | None, like: Examples | None = None
) -> tuple[Tensor, NDArray[Any], tuple[str, ...]]:
    """Convert labels to targets (N,) int64, or floats to numbers to predict (N, D) or (N, T, D) float32.

    Returns:
        The targets, the given values as an array (N, …), and the class names, which are () for numbers to predict.

    Raises:
        UsageError: if the values have the wrong shape or type, or another type than those of the training set, `like`.
    """
    y = _array(y, what)
    floats = y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"
    if like is not None and like.continuous != floats:
        expected, got = ("floats", "classes")[:: 1 if like.continuous else -1]
        raise UsageError(f"The training targets are {expected}, but {what} contains {got}. Convert {what}.")
    if floats:
        target = _values(y, what, classes)
        if like is not None and target.shape[-1] != like.target.shape[-1]:
            expected = f"{like.target.shape[-1]} values per target as in training"
            raise UsageError(f"Expected {expected} in {what}, got {target.shape[-1]}.")
        return target, target.numpy(), ()
    label = _labels(y, what)
    names = _class_names(label, classes) if like is None else like.classes
    return _numbered(label, names, classes, what), label, names


def _values(y: Tensor | NDArray[Any], what: str, classes: Sequence[str] | None) -> Tensor:
    """Convert floats to numbers to predict (N, D) or (N, T, D) float32; `Examples` checks NaN."""
    if classes is not None:
        raise UsageError(f"The names of classes are given, but {what} contains floats. Convert {what} to integers.")
    target = y if isinstance(y, Tensor) else torch.from_numpy(y.astype(np.float64))
    target = target[:, None] if target.ndim == 1 else target
    if target.ndim > 3 or not target.shape[-1]:
        raise UsageError(f"Expected floats (N,), (N, D) or (N, T, D) in {what}, got {tuple(y.shape)}.")
    large = target.abs() > MAX_VALUE
    if bool(large.any()):
        value = float(target[large][0])
        raise UsageError(f"Expected numbers to predict from -{MAX_VALUE:g} to {MAX_VALUE:g} in {what}, got {value:g}.")
    return target.float()


def _labels(y: Tensor | NDArray[Any], what: str) -> NDArray[Any]:
    if isinstance(y, Tensor):
        if y.is_complex():
            raise UsageError(f"Expected integers, floats or strings in {what}, got {y.dtype}.")
        y = y.numpy()
    label = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if label.ndim != 1 or label.dtype.kind not in "biuUS":
        raise UsageError(
            f"Expected integers or strings (N,), or floats to predict, (N,), (N, D) or (N, T, D), in {what}, got "
            f"{label.dtype} {label.shape}."
        )
    try:
        return np.char.decode(label, "utf-8") if label.dtype.kind == "S" else label
    except UnicodeDecodeError as error:  # replacing invalid bytes could merge two classes
        raise UsageError(f"Expected UTF-8 strings in {what}, got {shown(error.object)}.") from error


def _class_names(label: NDArray[Any], classes: Sequence[str] | None) -> tuple[str, ...]:
    try:
        if isinstance(classes, str):
            raise TypeError("a single string is not a list of class names")
        names = tuple(map(str, islice(np.unique(label).tolist() if classes is None else classes, MAX_CLASSES)))
    except TypeError as problem:
        raise UsageError(f"Expected a list of class names, got {shown(classes)}.") from problem
    if len(set(names)) != len(names):
        raise UsageError(f"Expected unique class names, got {', '.join(names)}.")
    return names


def _numbered(label: NDArray[Any], names: tuple[str, ...], classes: Sequence[str] | None, what: str) -> Tensor:
    """Convert labels to indices into `names`, (N,) int64."""
    are_indices = classes is not None and label.dtype.kind in "biu"
    indices: dict[Any, int] = {c if are_indices else name: c for c, name in enumerate(names)}
    values, inverse = np.unique(label, return_inverse=True)
    target = {value: indices.get(value if are_indices else str(value)) for value in values.tolist()}
    if unknown := [str(value) for value, index in target.items() if index is None]:
        first = next(at for at, value in enumerate(label.tolist()) if target[value] is None)
        raise UsageError(
            f"Unknown labels in {what}: {', '.join(unknown[:5])}, first found in example {first}. The classes are "
            f"{', '.join(names[:10])}. Correct the labels, or pass the names of all classes."
        )
    return torch.tensor(list(target.values()))[torch.from_numpy(inverse.reshape(-1))]

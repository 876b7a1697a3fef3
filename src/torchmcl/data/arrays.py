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
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.preprocess import names as preprocessings
from torchmcl.data.selection import choose
from torchmcl.data.strata import Purpose, hold_out
from torchmcl.errors import UsageError, known_name

MOST = 100_000  # classes


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
    """A data set of arrays or tensors in memory, or of a torch `Dataset` or `DataLoader` of pairs, given as `x`.

    A `Dataset` or `DataLoader` is read into memory, once. `from_dataset` and `from_loaders` stream it instead.

    `x` holds images, (N, H, W), (N, H, W, C) or (N, C, H, W), of bytes or floats, tensors only (N, C, H, W); or a table
    (N, D). `y` (N,) holds whole numbers or texts. `classes` names the whole numbers from 0 on, or the texts in order;
    by default the classes are what occurs in `y`, sorted. Without `x_test`, the fraction `test` of each class is taken,
    chosen by `seed`; with test=0 there is no test part.

    >>> flowers = from_arrays([[5.1, 3.5], [6.2, 2.9], [4.9, 3.1], [5.9, 3.0]], ["rose", "tulip", "rose", "tulip"])
    >>> flowers.train, flowers.classes
    (Examples(2 of (2,), 2 classes), ('rose', 'tulip'))
    """
    choice = {"test": test, "validation": validation, "limit": limit, "seed": seed, "preprocess": preprocess}
    validate_types({**choice, "name": name}, from_arrays)
    if preprocess is not None:
        known_name("preprocessing", preprocess, preprocessings(), register=True)
    x, y = _pairs(x, y, "x and y")
    label = _labels(y, "y")
    names = _names(label, classes)
    train = Examples(_images(x, "x"), _numbered(label, names, classes, "y"), names)
    parts = {"train": train}
    choices: dict[str, object] = {}
    if x_test is not None or y_test is not None:
        x_test, y_test = _pairs(x_test, y_test, "x_test and y_test")
        target = _numbered(_labels(y_test, "y_test"), names, classes, "y_test")
        parts["test"] = Examples(_images(x_test, "x_test"), target, names)
        shapes = [tuple(part.images.shape[1:]) for part in parts.values()]
        if shapes[0] != shapes[1] or train.images.dtype != parts["test"].images.dtype:
            raise UsageError(f"Expected x and x_test of one shape and type, got {shapes[0]} and {shapes[1]}.")
    elif test:
        kept, held = hold_out(train.target, test, seed=seed, purpose=Purpose.TEST)
        parts = {"train": train.subset(kept), "test": train.subset(held)}
        choices = {"split": f"{test:g} of each class for the test", "split_seed": seed}
    # Floats were prepared by whoever made them.
    prepare = preprocess or ("gcn" if train.images.dtype == torch.uint8 else "none")
    return choose(DataSet(name, parts, prepare, choices), limit=limit, validation=validation, seed=seed)


def _pairs(x: Any, y: Any, what: str) -> tuple[Any, Any]:
    """Both as tensors or arrays of one length; a `Dataset` or `DataLoader` is read to its end."""
    if isinstance(x, Dataset | DataLoader) and y is None:
        x, y = _read(x if isinstance(x, DataLoader) else DataLoader(x, batch_size=256, generator=torch.Generator()))
    x, y = (dense(part.detach(), what).cpu() if isinstance(part, Tensor) else _array(part, what) for part in (x, y))
    check_memory(what, x.nbytes + y.nbytes)
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(x) == 0:
        raise UsageError(f"Expected {what} of one length, got {tuple(x.shape)} and {tuple(y.shape)}.")
    return x, y


def dense(x: Tensor, what: str) -> Tensor:
    """The tensor, if its values can be read one by one."""
    if x.layout != torch.strided or x.is_meta or x.is_quantized or x.is_nested:
        kind = "quantized" if x.is_quantized else "nested" if x.is_nested else str(x.layout)[6:]
        raise UsageError(f"Expected {what} in a dense tensor with values, got a {kind} one on {x.device}.")
    return x


def _read(loader: DataLoader) -> tuple[Tensor, Any]:
    try:
        batches = [(batch[0], batch[1]) for batch in loader]
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(
            f"Expected batches (x, y) from the loader, got others: {' '.join(str(error).split())}"
        ) from error
    xs, ys = zip(*batches, strict=True) if batches else ((), ())
    if not xs or not all(isinstance(part, Tensor) for part in xs):
        raise UsageError("Expected batches (x, y) of tensors from the loader, got none.")
    label = torch.cat(ys) if isinstance(ys[0], Tensor) else [each for part in ys for each in part]
    return torch.cat(xs), label


def as_array(values: Any, what: str) -> NDArray[Any]:
    """As numpy has it; a range or the like that no memory holds is refused before it is made, masked values always.

    >>> as_array(range(3), "labels").tolist()
    [0, 1, 2]
    """
    if np.ma.is_masked(values):  # numpy would put back what they hide
        raise UsageError(f"Expected {what} with values everywhere, got masked ones. Fill or remove them.")
    if not hasattr(values, "__array__"):
        try:
            check_memory(what, 8 * len(values))
        except TypeError:
            pass  # one value, or nothing that has a length
        except OverflowError as error:
            raise UsageError(f"Expected {what} of a length that memory holds, got {shown(values)}.") from error
    return np.asarray(values)


def _array(values: Any, what: str) -> NDArray[Any]:
    try:
        array = as_array(values, what)
    except UsageError:
        raise
    except ValueError as error:  # ragged
        raise UsageError(f"Expected {what} as arrays or tensors, got values of different lengths.") from error
    if array.dtype.kind == "O":
        texts = array.ndim == 1 and len(array) > 0 and all(isinstance(each, str) for each in array)
        if not texts:
            raise UsageError(f"Expected numbers or texts in {what}, got Python objects.")
        array = array.astype(str)
    elif array.dtype.kind in "US" and isinstance(values, list | tuple) and not _alike(values):
        raise UsageError(f"Expected numbers or texts in {what}, got a mixture. Convert them to texts yourself.")
    return array


def _alike(values: Sequence[Any]) -> bool:
    """Whether all are texts, or all bytes; numpy makes texts of whatever is among them, and "nan" of NaN.

    >>> _alike(["a", "b"]), _alike(["a", float("nan")]), _alike([1, "1"])
    (True, False, False)
    """
    each = np.array(values, dtype=object).ravel()
    return any(all(isinstance(one, kind) for one in each) for kind in (str, bytes))


def _images(x: Tensor | NDArray[Any], what: str) -> Tensor:
    """(N, C, H, W) uint8 or float32, or a table (N, D) float32."""
    channels_last = isinstance(x, np.ndarray) and x.ndim == 4 and _channels_last(x.shape, what)
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "biuf":
            raise UsageError(f"Expected numbers in {what}, got {x.dtype}.")
        x = x.astype(np.float64 if x.dtype.kind == "f" and x.dtype.itemsize > 8 else x.dtype.newbyteorder("="))
        if x.dtype == np.uint64 and x.size and int(x.max()) >= 2**63:  # would become negative
            raise UsageError(f"Expected numbers below 2**63 in {what}, got {int(x.max())}. Pass floats.")
        # torch has few types of its own for whole numbers without sign.
        x = torch.from_numpy(x if x.dtype.kind in "bf" or x.dtype == np.uint8 else x.astype(np.int64))
    if x.dim() not in (2, 3, 4) or x.numel() == 0:
        raise UsageError(f"Expected {what} as images (N, C, H, W) or a table (N, D), got {tuple(x.shape)}.")
    check_memory(what, 4 * x.numel())
    if x.is_complex():
        raise UsageError(f"Expected real numbers in {what}, got {x.dtype}.")
    if x.dim() == 2 or x.is_floating_point():
        x = x.float()
        if not bool(x.isfinite().all()):
            raise UsageError(f"Expected finite numbers in {what}, got NaN or infinity. Fill or remove them.")
    elif not 0 <= int((x := x.long()).min()) <= int(x.max()) <= 255:  # not all types of whole numbers compare
        raise UsageError(f"Expected images of 0 to 255 in {what}, got {int(x.min())} to {int(x.max())}.")
    else:
        x = x.to(torch.uint8)
    if x.dim() == 3:
        x = x[:, None]
    return (x.permute(0, 3, 1, 2) if channels_last else x).contiguous()


def _channels_last(shape: tuple[int, ...], what: str) -> bool:
    """Whether 1 or 3 channels come last; where that cannot be told, nothing is guessed."""
    first, last = shape[1] in (1, 3), shape[3] in (1, 3)
    if first == last:
        raise UsageError(
            f"Expected 1 or 3 channels first or last in {what}, got {shape}, which does not tell. "
            "Pass a tensor (N, C, H, W)."
        )
    return last


def as_targets(
    y: Any, what: str, classes: Sequence[str] | None, names: tuple[str, ...] | None = None
) -> tuple[Tensor, NDArray[Any], tuple[str, ...]]:
    """Labels -> targets from 0 on (N,), the labels as they are (N,), and the name of each class.

    `names` are those of the classes where they are known from other labels already.

    >>> as_targets(["dog", "cat"], "y", None)[0]
    tensor([1, 0])
    """
    label = _labels(dense(y.detach(), what).cpu() if isinstance(y, Tensor) else _array(y, what), what)
    names = names or _names(label, classes)
    return _numbered(label, names, classes, what), label, names


def _labels(y: Tensor | NDArray[Any], what: str) -> NDArray[Any]:
    if isinstance(y, Tensor):
        if y.is_floating_point() or y.is_complex():
            raise UsageError(f"Expected whole numbers or texts (N,) in {what}, got {y.dtype}.")
        y = y.numpy()
    label = y
    if label.ndim == 2 and label.shape[1] == 1:
        label = label[:, 0]
    if label.ndim != 1 or label.dtype.kind not in "biuUS":
        raise UsageError(f"Expected whole numbers or texts (N,) in {what}, got {label.dtype} {label.shape}.")
    try:
        return np.char.decode(label, "utf-8") if label.dtype.kind == "S" else label
    except UnicodeDecodeError as error:  # two that are none must not become one class
        raise UsageError(f"Expected texts in UTF-8 in {what}, got {shown(error.object)}.") from error


def _names(label: NDArray[Any], classes: Sequence[str] | None) -> tuple[str, ...]:
    try:
        if isinstance(classes, str):
            raise TypeError("letters")
        names = tuple(map(str, islice(np.unique(label).tolist() if classes is None else classes, MOST)))
    except TypeError as problem:
        raise UsageError(f"Expected the names of the classes in a list, got {shown(classes)}.") from problem
    if len(set(names)) != len(names):
        raise UsageError(f"Expected different names of classes, got {', '.join(names)}.")
    return names


def _numbered(label: NDArray[Any], names: tuple[str, ...], classes: Sequence[str] | None, what: str) -> Tensor:
    """Labels as places in `names`, (N,) int64."""
    are_places = classes is not None and label.dtype.kind in "biu"
    places: dict[Any, int] = {c if are_places else name: c for c, name in enumerate(names)}
    values, inverse = np.unique(label, return_inverse=True)
    found = {value: places.get(value if are_places else str(value)) for value in values.tolist()}
    if unknown := [str(value) for value, place in found.items() if place is None]:
        first = next(at for at, value in enumerate(label.tolist()) if found[value] is None)
        raise UsageError(
            f"Expected labels of {what} out of {', '.join(names[:10])}, got {', '.join(unknown[:5])} besides, "
            f"first in example {first}. Correct the labels, or name all classes."
        )
    return torch.tensor(list(found.values()))[torch.from_numpy(inverse.reshape(-1))]

"""Data sets in their publishers' formats, and batches of them: `load` by name, `from_arrays`, `from_dataset`
and `from_loaders` of your own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchmcl._utils.logs import VERBOSE, verbosity
from torchmcl._utils.registry import Registry
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess
from torchmcl.data.arrays import from_arrays
from torchmcl.data.datasets import cifar, digits, icoseg, image_folder, npz, segmentation_folder, svhn, tiny_imagenet
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import from_loaders
from torchmcl.data.image_files import ImageFiles, read_image
from torchmcl.data.loader import Batch, Loader
from torchmcl.data.selection import choose, read_if_below
from torchmcl.data.streaming import from_dataset
from torchmcl.errors import UsageError, known_name

ABOUT = {
    "digits": "1,797 handwritten digits of 8x8, 10 classes, inside scikit-learn",
    "digits-masks": "the same digits with masks of their ink, in 10 groups",
    "cifar10": "60,000 photographs of 32x32, 10 classes",
    "cifar100": "60,000 photographs of 32x32, 100 classes",
    "svhn": "99,289 digits of house numbers of 32x32, 10 classes",
    "tiny-imagenet": "110,000 photographs of 64x64, 200 classes",
    "icoseg": "449 photographs of 75x125 with masks of their foreground, in 36 groups",
}
NAMES = tuple(ABOUT)  # of this package's own
Reader = Callable[..., DataSet]
_REGISTERED: Registry[Reader] = Registry("data set")

__all__ = [
    "ABOUT",
    "NAMES",
    "Batch",
    "DataSet",
    "Examples",
    "ImageFiles",
    "Loader",
    "from_arrays",
    "from_dataset",
    "from_loaders",
    "load",
    "names",
    "preprocess",
    "read_image",
    "register",
]


def names() -> tuple[str, ...]:
    """The names of all data sets, registered ones included; folders and arrays of your own have none."""
    return (*NAMES, *_REGISTERED.names())


def about() -> dict[str, str]:
    """What each data set is, in one line; of a registered one the first line of its docstring."""
    own = {name: (reader.__doc__ or "").strip() or "-" for name, reader in _REGISTERED.items()}
    return ABOUT | {name: about.splitlines()[0] for name, about in own.items()}


def register(reader: Reader) -> Reader:
    """Register a data set of your own under the function's name, `(parts, *, directory, seed) -> DataSet`.

    `parts` are those of "train" and "test" that are wanted; `directory` is where the caller says that files are, or
    None; `seed` chooses a test set where none is published. Classes, limit and validation split are up to `load`.
    """
    if reader.__name__ in NAMES:
        raise UsageError(f"The name {reader.__name__!r} is taken by another data set. Rename the function.")
    return _REGISTERED.register(reader)


def load(
    name: str,
    *,
    directory: str | None = None,
    classes: str | Sequence[str] | None = None,
    limit: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
    size: int | tuple[int, int] | None = None,
    parts: Sequence[str] = ("train", "test"),
    verbose: bool = True,
    in_memory: float = 2.0,
) -> DataSet:
    """A data set by its name, or your own: folder:PATH, segmentation-folder:PATH or npz:PATH.

    Args:
        directory: where its files are; then the folder TORCHMCL_DATA names and the user's cache are looked into, and
            what is in none of them is downloaded into the cache
        classes: only these, "dog,airplane" or a list, numbered in this order; for segmentation, only these groups
        limit: at most so many training examples, of each class in proportion
        validation: the fraction of each class of the training examples that is held out, after `limit`
        seed: chooses for `limit` and `validation`, and the test set where none is published (but that of digits)
        size: (H, W), or one side of a square, that files of images are resized to
        parts: "train" or "test" alone reads no more than is needed for it
        verbose: show the progress of a download; see `fit` for logging
        in_memory: the largest part, in gigabytes of pixels, whose files of images are read at once; the files of a
            larger one are read when they are needed

    >>> digits = load("digits", classes="3,8", validation=0.1)
    >>> digits.train, digits.validation, digits.test
    (Examples(256 of (1, 8, 8), 2 classes), Examples(29 of (1, 8, 8), 2 classes), Examples(72 of (1, 8, 8), 2 classes))
    """
    given = {"directory": directory, "limit": limit, "validation": validation, "seed": seed, "size": size}
    validate_types({"name": name, **given, "parts": parts, "in_memory": in_memory}, load)
    if not parts or not set(parts) <= {"train", "test"}:
        raise UsageError(f"Expected parts out of train, test, got {', '.join(parts) or 'none'}.")
    if seed < 0:
        raise UsageError(f"Expected a seed from 0 on, got {seed}.")
    with verbosity(verbose and VERBOSE.get()):
        data = _read(name, directory, parts, seed, _pair(name, size))
    data = choose(data, classes=classes, limit=limit, validation=validation, seed=seed)
    chosen = classes if classes is None or isinstance(classes, str) else tuple(map(str, classes))
    source = {"dir": directory, "classes": chosen, "limit": limit, "validation": validation, "size": size, "seed": seed}
    # Last, so that only what is wanted is read from disk.
    held = {part: read_if_below(examples, in_memory * 1e9) for part, examples in data.parts.items()}
    return replace(data, parts=held, source={**source, "in_memory": in_memory})


def _read(name: str, directory: str | None, parts: Sequence[str], seed: int, size: tuple[int, int] | None) -> DataSet:
    kind, _, path = name.partition(":")
    if kind == "folder" and path:
        return image_folder.load(path, parts, seed=seed, size=size)
    if kind == "segmentation-folder" and path:
        return segmentation_folder.load(path, parts, seed=seed, size=size)
    if kind == "npz" and path:
        return npz.load(path, parts, seed=seed)
    if name in _REGISTERED:
        return replace(_REGISTERED[name](parts, directory=directory, seed=seed), name=name)
    known = [*names(), "folder:PATH", "segmentation-folder:PATH", "npz:PATH"]
    known_name("data set", name, known, register=True)
    readers = {
        "digits": lambda: digits.load(parts),
        "digits-masks": lambda: digits.masks(parts),
        "cifar10": lambda: cifar.cifar10(directory, parts),
        "cifar100": lambda: cifar.cifar100(directory, parts),
        "svhn": lambda: svhn.load(directory, parts),
        "tiny-imagenet": lambda: tiny_imagenet.load(directory, parts, size),
        "icoseg": lambda: icoseg.load(directory, parts, seed=seed, size=size),
    }
    return readers[name]()


def _pair(name: str, size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width, if they can be chosen."""
    if size is None:
        return None
    if not name.startswith(("folder:", "segmentation-folder:")) and name not in ("tiny-imagenet", "icoseg"):
        raise UsageError(f"Expected a size for folder:PATH, tiny-imagenet or icoseg alone, got {size} for {name}.")
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= 10_000 and 1 <= width <= 10_000):
        raise UsageError(f"Expected a size of 1 to 10,000 pixels each way, got {height} x {width}.")
    return height, width

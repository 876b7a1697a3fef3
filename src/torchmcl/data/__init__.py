"""Functions that load data by name (`load`) or from the user's objects (`from_arrays`, `from_dataset`, `from_loaders`),
and that split, augment, preprocess and batch it. Losses, metrics and training loops do not belong here."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torchmcl._utils.logs import VERBOSE, verbosity
from torchmcl._utils.registry import Registry
from torchmcl._utils.validation import validate_types
from torchmcl.data import preprocess, transforms
from torchmcl.data.arrays import from_arrays
from torchmcl.data.datasets import (
    cifar,
    digits,
    icoseg,
    image_folder,
    modes,
    npz,
    segmentation_folder,
    small_tables,
    svhn,
    tiny_imagenet,
)
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.external import from_loaders
from torchmcl.data.image_files import ImageFiles, read_image
from torchmcl.data.lazy import Lazy
from torchmcl.data.loader import Batch, Loader
from torchmcl.data.preprocess import split_whitening
from torchmcl.data.samples import take_sample
from torchmcl.data.selection import read_if_smaller, select
from torchmcl.data.streaming import from_dataset
from torchmcl.errors import UsageError, known_name

ABOUT = {
    "digits": "1,797 handwritten digits, 8x8 pixels, 10 classes, included in scikit-learn",
    "digits-masks": "the same images as digits, with masks of the ink, in 10 groups",
    "cifar10": "60,000 photographs, 32x32 pixels, 10 classes",
    "cifar100": "60,000 photographs, 32x32 pixels, 100 classes",
    "svhn": "99,289 digits from house numbers, 32x32 pixels, 10 classes",
    "tiny-imagenet": "110,000 photographs, 64x64 pixels, 200 classes",
    "icoseg": "449 photographs, 75x125 pixels, with foreground masks, in 36 groups",
    "diabetes": "442 patients, 10 features, 1 number to predict, included in scikit-learn",
    "linnerud": "20 persons, 3 features, 3 numbers to predict, included in scikit-learn",
    "boston-housing": "506 districts, 13 features, 1 number to predict, included in mlxtend",
    "auto-mpg": "392 cars, 7 features, 1 number to predict, included in mlxtend",
    "three-modes": "2,000 synthetic examples, 1 feature, 2 numbers to predict with up to three modes",
    "grouped-modes": "the same with eight modes, which are groups in training",
}
NAMES = tuple(ABOUT)  # the built-in data sets
TABLES = ("diabetes", "linnerud", "boston-housing", "auto-mpg")
NUMBERS = (*TABLES, "three-modes", "grouped-modes")  # tables with numbers to predict
MASKS = ("digits-masks", "icoseg", "segmentation-folder")  # images with masks, the last one with a path
Reader = Callable[..., DataSet]
_REGISTERED: Registry[Reader] = Registry("data set", reserved=NAMES)

__all__ = [
    "ABOUT",
    "NAMES",
    "Batch",
    "DataSet",
    "Examples",
    "ImageFiles",
    "Lazy",
    "Loader",
    "from_arrays",
    "from_dataset",
    "from_loaders",
    "load",
    "names",
    "preprocess",
    "read_image",
    "register",
    "transforms",
]


def names() -> tuple[str, ...]:
    """Return the names of all data sets, including registered ones."""
    return (*NAMES, *_REGISTERED.names())


def about() -> dict[str, str]:
    """Return a one-line description per data set; for a registered one, the first line of its reader's docstring."""
    registered = {name: (reader.__doc__ or "").strip() or "-" for name, reader in _REGISTERED.items()}
    return ABOUT | {name: text.splitlines()[0] for name, text in registered.items()}


def register(reader: Reader) -> Reader:
    """A decorator that registers a data set under the name of its reader.

    Args:
        reader: a function `(parts, *, directory, seed) -> DataSet`. `parts` are the requested parts, "train" or "test",
            `directory` is the folder passed to `load` or None, and `seed` is the seed for splitting off a test set if
            none is published. `load` then selects classes, limits the examples and holds out a validation part

    Raises:
        UsageError: if the name is taken.

    >>> @register  # doctest: +IGNORE_EXCEPTION_DETAIL
    ... def digits(parts, *, directory, seed): ...
    Traceback (most recent call last):
    torchmcl.errors.UsageError: the name is taken
    """
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
    sample: str | None = None,
    preprocess: str | None = None,
    skip_unreadable: bool = False,
) -> DataSet:
    """Load a data set by name, or from the user's folder or file.

    Args:
        name: a name in `names()`, or folder:PATH, segmentation-folder:PATH or npz:PATH
        directory: the folder that contains the files. The folder in the environment variable TORCHMCL_DATA and the
            user's cache are searched next; files that are in none of these folders are downloaded to the cache
        classes: the classes (for segmentation, the groups) to select, as a list or a string such as "dog,airplane";
            they are numbered in this order
        limit: the maximum number of training examples; each class keeps its proportion
        validation: the fraction of the training examples of each class to hold out after `limit` is applied
        seed: the seed for choosing the examples for `limit`, for `validation` and, if no test set is published, for the
            test set (the test set of digits is fixed)
        size: the height and width, or the side of a square, to which image files are resized
        parts: the parts to load, "train", "test" or both
        verbose: whether to show the progress of a download; see `fit` for logging
        in_memory: the size in gigabytes below which the images of a part are read into memory; the files of a larger
            part are read on demand
        sample: the name of a published sample in `samples.names()` to use in place of the complete data set
        preprocess: a name in `preprocess.names()`, or steps joined by "+"; by default, that of the data set
        skip_unreadable: whether to leave out the files of folder:PATH that cannot be read and the classes without
            images, with a warning that lists them; by default, they are an error

    Returns:
        A `DataSet` with the requested parts, and a part "validation" if `validation` is not 0.

    Raises:
        UsageError: if a name or option is wrong, or if the files are missing or damaged.

    >>> digits = load("digits", classes="3,8", validation=0.1)
    >>> digits.train, digits.validation, digits.test
    (Examples(256 of (1, 8, 8), 2 classes), Examples(29 of (1, 8, 8), 2 classes), Examples(72 of (1, 8, 8), 2 classes))
    """
    options: dict[str, Any] = {"limit": limit, "validation": validation, "size": size, "seed": seed}
    options |= {"in_memory": in_memory, "sample": sample, "preprocess": preprocess}
    options["skip_unreadable"] = skip_unreadable
    if preprocess is not None:
        split_whitening(preprocess)  # raises UsageError if the name is unknown
    validate_types({"name": name, "directory": directory, "parts": parts, **options}, load)
    if not parts or not set(parts) <= {"train", "test"}:
        raise UsageError(f"Expected parts to be train, test or both, got {', '.join(parts) or 'none'}.")
    if seed < 0:
        raise UsageError(f"Expected seed >= 0, got {seed}.")
    with verbosity(verbose and VERBOSE.get()):
        images: dict[str, Any] = {"size": _height_and_width(name, size)}
        if name.startswith("folder:"):
            images |= {"skip_unreadable": skip_unreadable, "chosen": classes}
        elif skip_unreadable:
            raise UsageError(f"The option skip_unreadable applies to folder:PATH only, not to {name}. Omit it.")
        data = _read(name, directory, parts, seed, **images)
    if sample is not None:
        data = take_sample(data, sample)
    data = select(data, classes=classes, limit=limit, validation=validation, seed=seed)
    selected = classes if classes is None or isinstance(classes, str) else tuple(map(str, classes))
    # Images are read after the selection, so that only the selected images are read.
    loaded = {part: read_if_smaller(examples, in_memory * 1e9) for part, examples in data.parts.items()}
    source = {"dir": directory, "classes": selected, **options}
    return replace(data, parts=loaded, source=source, preprocess=preprocess or data.preprocess)


def _read(
    name: str, directory: str | None, parts: Sequence[str], seed: int, *, size: tuple[int, int] | None, **options: Any
) -> DataSet:
    if name in _REGISTERED:
        return replace(_REGISTERED[name](parts, directory=directory, seed=seed), name=name)
    kind, _, path = name.partition(":")
    if not (path and kind in ("folder", "segmentation-folder", "npz")):
        known_name("data set", name, [*names(), "folder:PATH", "segmentation-folder:PATH", "npz:PATH"], register=True)
    readers = {
        "folder": lambda: image_folder.load(path, parts, seed=seed, size=size, **options),
        "segmentation-folder": lambda: segmentation_folder.load(path, parts, seed=seed, size=size),
        "npz": lambda: npz.load(path, parts, seed=seed),
        "digits": lambda: digits.load(parts),
        "digits-masks": lambda: digits.masks(parts, size),
        "cifar10": lambda: cifar.cifar10(directory, parts),
        "cifar100": lambda: cifar.cifar100(directory, parts),
        "svhn": lambda: svhn.load(directory, parts),
        "tiny-imagenet": lambda: tiny_imagenet.load(directory, parts, size),
        "icoseg": lambda: icoseg.load(directory, parts, seed=seed, size=size or icoseg.SIZE),
        **{table: lambda: small_tables.load(name, parts, seed=seed) for table in TABLES},
        "three-modes": lambda: modes.three_modes(parts, seed=seed),
        "grouped-modes": lambda: modes.grouped_modes(parts, seed=seed),
    }
    return readers[kind]()


def _height_and_width(name: str, size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    resizable = ("tiny-imagenet", "icoseg", "digits-masks")
    if not name.startswith(("folder:", "segmentation-folder:")) and name not in resizable:
        raise UsageError(f"Cannot resize {name} to {size}. Only folders, {', '.join(resizable)} support resizing.")
    height, width = (size, size) if isinstance(size, int) else size
    if not (1 <= height <= 10_000 and 1 <= width <= 10_000):
        raise UsageError(f"Expected a height and width between 1 and 10,000 pixels, got {height} and {width}.")
    return height, width

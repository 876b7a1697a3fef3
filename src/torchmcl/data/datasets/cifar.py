from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.find import check_file
from torchmcl.data.pickles import Array, read_pickle
from torchmcl.errors import DamagedFileError

PIXELS = 3 * 32 * 32
MAX_BYTES = 50_000 * (PIXELS + 500)  # the limit per file; a pickle also contains the name of each image


@dataclass(frozen=True)
class Layout:
    """The files of one version of the data set, and the locations of the labels and class names in these files."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    labels: int = 0  # the number of label bytes before the pixels (the last byte is used), or 0 for pickles
    label_key: str = ""
    names_key: str = ""


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_BINARY = tuple(f"{batch}.bin" for batch in _BATCHES)
CIFAR10 = (
    Layout("cifar-10-batches-bin", _BINARY, ("test_batch.bin",), "batches.meta.txt", 1),
    Layout("cifar-10-batches-py", _BATCHES, ("test_batch",), "batches.meta", 0, "labels", "label_names"),
)
CIFAR100 = (
    Layout("cifar-100-binary", ("train.bin",), ("test.bin",), "fine_label_names.txt", 2),
    Layout("cifar-100-python", ("train",), ("test",), "meta", 0, "fine_labels", "fine_label_names"),
)
CLASSES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASSES100 = tuple(_FINE.split())


def cifar10(directory: str | None = None, parts: Sequence[str] = ("train", "test")) -> DataSet:
    """Load the binary or Python version of CIFAR-10 (Krizhevsky, 2009), (N, 3, 32, 32) uint8."""
    return _load("cifar10", CIFAR10, CLASSES10, directory, parts)


def cifar100(directory: str | None = None, parts: Sequence[str] = ("train", "test")) -> DataSet:
    """Load the binary or Python version of CIFAR-100 (Krizhevsky, 2009) with fine labels, (N, 3, 32, 32) uint8."""
    return _load("cifar100", CIFAR100, CLASSES100, directory, parts)


def _load(
    name: str, layouts: Sequence[Layout], classes: tuple[str, ...], directory: str | None, parts: Sequence[str]
) -> DataSet:
    folder = obtain([layout.folder for layout in layouts], directory)
    layout = next(layout for layout in layouts if layout.folder == folder.name)
    classes = _names(folder, layout, classes)
    files = {"train": layout.train, "test": layout.test}
    made = {part: _part([folder / file for file in files[part]], layout, classes) for part in parts}
    return DataSet(name, made, choices={"version": layout.folder})


def _part(paths: Sequence[Path], layout: Layout, classes: tuple[str, ...]) -> Examples:
    read = [_binary(path, layout) if layout.labels else _pickled(path, layout) for path in paths]
    for path, (_, label) in zip(paths, read, strict=True):
        if (wrong := np.flatnonzero(label >= len(classes))).size:
            got = f"{label[wrong[0]]} in record {wrong[0]}. Download the file again"
            raise DamagedFileError(f"Expected labels below {len(classes)} in {path}, got {got}.")
    images = np.concatenate([pixels.reshape(-1, 3, 32, 32) for pixels, _ in read])
    target = np.concatenate([label for _, label in read]).astype(np.int64)
    return Examples(torch.from_numpy(images), torch.from_numpy(target), classes)


def _binary(path: Path, layout: Layout) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    """Read records of label bytes and 3,072 pixel values; return pixels (N, 3072) and labels (N,)."""
    record = layout.labels + PIXELS
    content = np.fromfile(check_file(path, MAX_BYTES), dtype=np.uint8)
    if (size := len(content)) % record:
        raise DamagedFileError(f"Expected a multiple of {record} bytes in {path}, got {size}. Download the file again.")
    records = content.reshape(-1, record)
    return records[:, layout.labels :], records[:, layout.labels - 1]


def _pickled(path: Path, layout: Layout) -> tuple[NDArray[np.uint8], NDArray[np.integer]]:
    """Read a pickled dictionary; return pixels (N, 3072) and labels (N,)."""
    content = read_pickle(check_file(path, MAX_BYTES))
    data, label = content.get("data"), content.get(layout.label_key)
    pixels = data.bytes_(path) if isinstance(data, Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != PIXELS or len(pixels) == 0:
        raise DamagedFileError(f"Expected data (N, {PIXELS}) uint8 in {path}. Download the file again.")
    if not isinstance(label, list) or not all(type(each) is int and 0 <= each < 256 for each in label):
        raise DamagedFileError(
            f"Expected {layout.label_key} to be a list of labels in {path}. Download the file again."
        )
    if len(label) != len(pixels):
        raise DamagedFileError(f"Expected one label for each of the {len(pixels)} images in {path}, got {len(label)}.")
    return pixels, np.array(label, dtype=np.int64)


def _names(folder: Path, layout: Layout, default: tuple[str, ...]) -> tuple[str, ...]:
    """Read the names of the classes from their file, or return the default if the file is missing."""
    path = folder / layout.names
    if not path.exists():
        return default
    check_file(path, 10**6)
    if layout.labels:
        names: object = path.read_text(encoding="utf-8", errors="replace").split()
    else:
        names = read_pickle(path).get(layout.names_key)
    listed = names if isinstance(names, list) else []
    # Pickles that were written by Python 3 can contain bytes.
    listed = [name.decode("latin-1") if isinstance(name, bytes) else name for name in listed]
    texts = tuple(name for name in listed if isinstance(name, str))
    if len(texts) != len(default) or len(set(texts)) != len(texts):
        raise DamagedFileError(f"Expected {len(default)} unique class names in {path}, got {len(set(texts))}.")
    return texts

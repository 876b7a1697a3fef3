from collections.abc import Sequence
from pathlib import Path

import torch

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.find import check_file
from torchmcl.data.image_files import ImageFiles
from torchmcl.errors import UsageError

SIZE = (64, 64)
MAX_BYTES = 10**8  # the limit per text file


def load(
    directory: str | None = None, parts: Sequence[str] = ("train", "test"), size: tuple[int, int] | None = None
) -> DataSet:
    """Load Tiny-ImageNet as `ImageFiles` (N, 3, 64, 64), in the class order of wnids.txt; val is the test set."""
    folder = obtain(["tiny-imagenet-200"], directory)
    ids = _text(folder / "wnids.txt").split()
    if len(set(ids)) != len(ids):
        raise UsageError(f"A class appears twice in {folder / 'wnids.txt'}. Download the file again.")
    number = {wnid: c for c, wnid in enumerate(ids)}
    classes = _names(folder / "words.txt", ids)
    read = {"train": _train, "test": _val}
    made = {}
    for part in parts:
        paths, label = read[part](folder, number)
        made[part] = Examples(ImageFiles(tuple(paths), size or SIZE), torch.tensor(label), classes)
    return DataSet("tiny-imagenet", made, choices={"test": "the published val part"})


def _text(path: Path) -> str:
    return check_file(path, MAX_BYTES).read_text(encoding="utf-8", errors="replace")


def _train(folder: Path, number: dict[str, int]) -> tuple[list[str], list[int]]:
    paths, label = [], []
    for wnid, c in number.items():
        images = folder / "train" / wnid / "images"
        files = sorted(str(path) for path in images.glob("*.JPEG") if not path.name.startswith("."))
        if not files:
            raise UsageError(f"There are no images *.JPEG in {images}. Download the data set again.")
        paths += files
        label += [c] * len(files)
    return paths, label


def _val(folder: Path, number: dict[str, int]) -> tuple[list[str], list[int]]:
    table = folder / "val" / "val_annotations.txt"
    lines = _text(table).splitlines()
    images = {path.name: str(path) for path in sorted((folder / "val" / "images").glob("*.JPEG"))}
    paths, label = [], []
    for line_number, line in enumerate(lines, 1):
        file, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in number or file not in images:
            expected = f"an image in val/images and a class in wnids.txt on line {line_number} of {table}"
            raise UsageError(f"Expected {expected}, got {file!r} and {wnid!r}. Download the data set again.")
        paths.append(images.pop(file))  # an image may be listed only once
        label.append(number[wnid])
    return paths, label


def _names(path: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """Return the first name of each class, or its WordNet id if it has no name or another class has the same one."""
    if not path.exists():
        return tuple(ids)
    lines = _text(path).splitlines()
    words = {wnid: word.split(",")[0].strip() for wnid, _, word in (line.partition("\t") for line in lines)}
    names = [words.get(wnid) or wnid for wnid in ids]
    return tuple(name if names.count(name) == 1 else wnid for name, wnid in zip(names, ids, strict=True))

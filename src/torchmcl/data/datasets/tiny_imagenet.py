from collections.abc import Sequence
from pathlib import Path

import torch

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.find import whole
from torchmcl.data.image_files import ImageFiles
from torchmcl.errors import UsageError

SIZE = (64, 64)
MOST = 10**8  # bytes of one text file


def load(
    directory: str | None = None, parts: Sequence[str] = ("train", "test"), size: tuple[int, int] | None = None
) -> DataSet:
    """Tiny-ImageNet, 200 classes in the order of wnids.txt, `ImageFiles` of (N, 3, 64, 64); the test set is its val."""
    folder = obtain(["tiny-imagenet-200"], directory)
    ids = whole(folder / "wnids.txt", MOST).read_text(encoding="utf-8", errors="replace").split()
    if len(set(ids)) != len(ids):
        raise UsageError(f"Expected different classes in {folder / 'wnids.txt'}, got one twice.")
    number = {wnid: c for c, wnid in enumerate(ids)}
    classes = _names(folder / "words.txt", ids)
    read = {"train": _train, "test": _val}
    made = {}
    for part in parts:
        paths, label = read[part](folder, number)
        made[part] = Examples(ImageFiles(tuple(paths), size or SIZE), torch.tensor(label), classes)
    return DataSet("tiny-imagenet", made, choices={"test": "the published val part"})


def _train(folder: Path, number: dict[str, int]) -> tuple[list[str], list[int]]:
    paths, label = [], []
    for wnid, c in number.items():
        images = folder / "train" / wnid / "images"
        found = sorted(str(path) for path in images.glob("*.JPEG") if not path.name.startswith("."))
        if not found:
            raise UsageError(f"Expected images *.JPEG in {images}, found none. Get the set again, complete.")
        paths += found
        label += [c] * len(found)
    return paths, label


def _val(folder: Path, number: dict[str, int]) -> tuple[list[str], list[int]]:
    table = whole(folder / "val" / "val_annotations.txt", MOST)
    there = {path.name: str(path) for path in sorted((folder / "val" / "images").glob("*.JPEG"))}
    paths, label = [], []
    for at, line in enumerate(table.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        file, wnid = (*line.split("\t"), "", "")[:2]
        if wnid not in number or file not in there:
            raise UsageError(
                f"Expected an image of val/images and a class of wnids.txt in line {at} of {table}, "
                f"got {file!r} and {wnid!r}."
            )
        paths.append(there.pop(file))  # each once
        label.append(number[wnid])
    return paths, label


def _names(path: Path, ids: Sequence[str]) -> tuple[str, ...]:
    """The first of each class's words, its number where there is none or where two classes share it."""
    if not path.exists():
        return tuple(ids)
    lines = whole(path, MOST).read_text(encoding="utf-8", errors="replace").splitlines()
    words = {wnid: word.split(",")[0].strip() for wnid, _, word in (line.partition("\t") for line in lines)}
    names = [words.get(wnid) or wnid for wnid in ids]
    return tuple(name if names.count(name) == 1 else wnid for name, wnid in zip(names, ids, strict=True))

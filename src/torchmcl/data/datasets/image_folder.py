import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median_high

import torch

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import EXTENSIONS, ImageFiles, image_size
from torchmcl.data.strata import Purpose, hold_out
from torchmcl.errors import UsageError

LOOKED_AT = 100  # images whose sizes decide


def load(
    path: str,
    parts: Sequence[str] = ("train", "test"),
    *,
    seed: int = 0,
    size: tuple[int, int] | None = None,
) -> DataSet:
    """Images in one folder per class, `ImageFiles` of (N, 3, H, W), resized to `size`, by default the median of 100.

    Classes are in PATH/train and PATH/test (or PATH/val; of both, val is for validation), or in PATH itself, where a
    fifth of each class, chosen by `seed`, is the test set.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UsageError(f"Expected a folder of images, one folder a class, got {path!r}, which is no folder.")
    split = _published(root)
    if split:
        classes = _classes(split["train"])
        found = {part: _examples(folder, classes) for part, folder in split.items()}
        choices: dict[str, object] = {part: folder.name for part, folder in split.items()}
    else:
        classes = _classes(root)
        paths, label = _examples(root, classes)
        held = hold_out(torch.tensor(label), 0.2, seed=seed, purpose=Purpose.TEST)
        found = {
            part: ([paths[at] for at in places.tolist()], [label[at] for at in places.tolist()])
            for part, places in zip(("train", "test"), held, strict=True)
        }
        choices = {"split": "a fifth of each class for the test", "split_seed": seed}
    # The whole set decides the size, so that it does not depend on which part is asked for.
    size = size or median_size(found["train"][0])
    wanted = {*parts, *(["validation"] if "train" in parts else [])}
    made = {
        part: Examples(ImageFiles(tuple(paths), size), torch.tensor(label), classes)
        for part, (paths, label) in found.items()
        if part in wanted
    }
    return DataSet(f"folder:{path}", made, choices={**choices, "size": list(size)})


def _published(root: Path) -> dict[str, Path]:
    """The folder of each part, where both train and test are; one alone may be a class, for trains are photographed."""
    there = {name: root / name for name in ("train", "test", "val") if _folders(root / name)}
    if "train" not in there or len(there) < 2:
        return {}
    if "test" not in there:
        return {"train": there["train"], "test": there["val"]}
    return {"validation" if name == "val" else name: folder for name, folder in there.items()}


def _classes(root: Path) -> tuple[str, ...]:
    classes = _folders(root)
    if len(classes) < 2:
        raise UsageError(f"Expected a folder for each of 2 or more classes in {root}, got {len(classes)}.")
    return tuple(classes)


def _folders(root: Path) -> list[str]:
    """The names of the folders in it, those hidden left out."""
    return sorted(path.name for path in root.iterdir() if path.is_dir() and _seen(path.name)) if root.is_dir() else []


def _seen(name: str) -> bool:
    return not name.startswith((".", "__MACOSX"))


def _examples(root: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    """Paths of all images, class by class, and their labels."""
    if unknown := [name for name in _folders(root) if name not in classes]:
        raise UsageError(f"Expected only classes of the training set in {root}, got {', '.join(unknown[:5])} besides.")
    paths, label = [], []
    for c, name in enumerate(classes):
        if not (root / name).is_dir():  # a test set may lack a class
            continue
        images, others = _images(root / name)
        if not images:
            kinds = ", ".join(sorted(EXTENSIONS))
            raise UsageError(
                f"Expected images ({kinds}) in {root / name}, found none and {others} other files. "
                "Fill the folder or remove it."
            )
        paths += images
        label += [c] * len(images)
    return paths, label


def _images(folder: Path) -> tuple[list[str], int]:
    """The images in a folder and below, and how many files are none."""
    images, others = [], 0
    for at, below, files in os.walk(folder):
        below[:] = sorted(filter(_seen, below))
        for file in sorted(filter(_seen, files)):
            if os.path.splitext(file)[1].lower() in EXTENSIONS:
                images.append(os.path.join(at, file))
            else:
                others += 1
    return images, others


def median_size(paths: Sequence[str]) -> tuple[int, int]:
    """Median height and median width of images spread over the set."""
    step = max(len(paths) // LOOKED_AT, 1)
    heights, widths = zip(*(image_size(path) for path in paths[::step][:LOOKED_AT]), strict=True)
    return median_high(heights), median_high(widths)

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median_high

import torch

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import EXTENSIONS, ImageFiles, image_size
from torchmcl.data.strata import train_test_split
from torchmcl.errors import UsageError

SIZE_SAMPLE = 100  # the number of images from which the default size is computed


def load(
    path: str, parts: Sequence[str] = ("train", "test"), *, seed: int = 0, size: tuple[int, int] | None = None
) -> DataSet:
    """Load `ImageFiles` (N, 3, H, W) from a folder with one subfolder per class.

    If PATH contains the folders train and test (or val), these folders contain the classes; if all three exist, val is
    the validation part. Otherwise, PATH itself contains the classes, and the test set is a fifth of each class, drawn
    with `seed`. Images are resized to `size`, by default the median size of up to 100 training images. Raises
    UsageError if there are fewer than two classes, or if a class has no images.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UsageError(f"The folder {path!r} does not exist. Pass a folder with one subfolder of images per class.")
    folders = _parts(root)
    classes = tuple(_subfolders(folders.get("train", root)))
    if len(classes) < 2:
        where = folders.get("train", root)
        raise UsageError(f"Expected at least 2 class folders in {where}, got {len(classes)}.")
    if folders:
        files = {part: _examples(folder, classes) for part, folder in folders.items()}
        choices: dict[str, object] = {part: folder.name for part, folder in folders.items()}
    else:
        paths, label = _examples(root, classes)
        split = train_test_split(torch.tensor(label), seed=seed)
        files = {
            part: ([paths[at] for at in index.tolist()], [label[at] for at in index.tolist()])
            for part, index in split.items()
        }
        choices = {"split": "a fifth of each class held out for testing", "split_seed": seed}
    # The training images determine the size, whichever parts are requested.
    size = size or median_size(files["train"][0])
    requested = {*parts, *(["validation"] if "train" in parts else [])}
    made = {
        part: Examples(ImageFiles(tuple(paths), size), torch.tensor(label), classes)
        for part, (paths, label) in files.items()
        if part in requested
    }
    return DataSet(f"folder:{path}", made, choices={**choices, "size": list(size)})


def _parts(root: Path) -> dict[str, Path]:
    """Return the folder of each part if train and either test or val exist; otherwise {}, as train may be a class."""
    found = {name: root / name for name in ("train", "test", "val") if _subfolders(root / name)}
    if "train" not in found or len(found) < 2:
        return {}
    if "test" not in found:
        return {"train": found["train"], "test": found["val"]}
    return {"validation" if name == "val" else name: folder for name, folder in found.items()}


def _subfolders(root: Path) -> list[str]:
    paths = root.iterdir() if root.is_dir() else ()
    return sorted(path.name for path in paths if path.is_dir() and _visible(path.name))


def _visible(name: str) -> bool:
    return not name.startswith((".", "__MACOSX"))


def _examples(root: Path, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    """List the paths of all images, class by class, and their labels."""
    if unknown := [name for name in _subfolders(root) if name not in classes]:
        raise UsageError(f"The classes {', '.join(unknown[:5])} in {root} are not in the training set. Remove them.")
    paths, label = [], []
    for c, name in enumerate(classes):
        if not (root / name).is_dir():  # a test set may lack a class
            continue
        images, others = _images(root / name)
        if not images:
            kinds = ", ".join(sorted(EXTENSIONS))
            raise UsageError(f"There are no images ({kinds}) among the {others} files in {root / name}. Add images.")
        paths += images
        label += [c] * len(images)
    return paths, label


def _images(folder: Path) -> tuple[list[str], int]:
    """List the images in a folder and its subfolders, and count the other files."""
    images, others = [], 0
    for at, below, files in os.walk(folder):
        below[:] = sorted(filter(_visible, below))
        for file in sorted(filter(_visible, files)):
            if os.path.splitext(file)[1].lower() in EXTENSIONS:
                images.append(os.path.join(at, file))
            else:
                others += 1
    return images, others


def median_size(paths: Sequence[str]) -> tuple[int, int]:
    """Return the median height and the median width of up to SIZE_SAMPLE images, spread evenly over the list."""
    step = max(len(paths) // SIZE_SAMPLE, 1)
    heights, widths = zip(*(image_size(path) for path in paths[::step][:SIZE_SAMPLE]), strict=True)
    return median_high(heights), median_high(widths)

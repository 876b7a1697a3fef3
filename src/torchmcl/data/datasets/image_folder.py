import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_high

import torch

from torchmcl._utils.logs import report
from torchmcl.data import folder_check
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.folder_check import Listing, is_image, list_images, visible
from torchmcl.data.image_files import ImageFiles, image_size
from torchmcl.data.strata import train_test_split
from torchmcl.errors import UsageError

LOGGER = logging.getLogger(__name__)
SIZE_SAMPLE = 100  # the number of images from which the default size is computed
SKIP = "Repair or remove them, or leave them out with --skip-unreadable (data_skip_unreadable=True)."

Files = tuple[list[str], list[int]]  # the paths of images and their labels


def load(
    path: str,
    parts: Sequence[str] = ("train", "test"),
    *,
    seed: int = 0,
    size: tuple[int, int] | None = None,
    skip_unreadable: bool = False,
    chosen: str | Sequence[str] | None = None,
) -> DataSet:
    """Load `ImageFiles` (N, 3, H, W) from a folder with one subfolder per class.

    If PATH contains the folders train and test (or val), these folders contain the classes; if all three exist, val is
    the validation part. Otherwise, PATH itself contains the classes, and the test set is a fifth of each class, drawn
    with `seed`. Images are resized to `size`, by default the median size of up to 100 training images. Hidden and
    system folders are ignored.

    The images of all classes, or of the `chosen` ones, are checked first. A UsageError names all files that cannot be
    read and all classes without images; with `skip_unreadable`, these are left out, with a warning. UsageError is also
    raised if there are fewer than two classes.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise UsageError(f"The folder {path!r} does not exist. Pass a folder with one subfolder of images per class.")
    folders = _parts(root)
    top = folders.get("train", root)
    classes = tuple(_subfolders(top))
    if len(classes) < 2:
        raise UsageError(f"Expected at least 2 class folders in {top}, got {len(classes)}.")
    listings = {part: _listings(folder, classes) for part, folder in (folders or {"train": root}).items()}
    names = None if chosen is None else _names(chosen)
    checked = [one for part in listings.values() for name, one in part.items() if names is None or name in names]
    entries = list(top.iterdir())
    hidden = [str(entry) for entry in entries if entry.is_dir() and not visible(entry.name)]
    beside = [entry for entry in entries if not entry.is_dir() and visible(entry.name) and is_image(entry.name)]
    found = folder_check.check(root, checked, hidden, beside=len(beside))
    if not found.complete:
        if not skip_unreadable:
            raise UsageError(f"{found.problems(f'folder:{path}')} {SKIP}")
        report(LOGGER, f"{found.problems(f'folder:{path}')} They are left out.", logging.WARNING)
        classes = tuple(name for name in classes if _usable(listings["train"][name], found.damaged))
        if len(classes) < 2:
            raise UsageError(f"Expected at least 2 classes with readable images in {top}, got {len(classes)}.")
    files = {part: _labelled(by_class, classes, found.damaged) for part, by_class in listings.items()}
    choices: dict[str, object] = {part: folder.name for part, folder in folders.items()}
    if not folders:
        paths, label = files["train"]
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
    return DataSet(f"folder:{path}", made, choices={**choices, "size": list(size)}, notes=found.notes(size))


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
    return sorted(path.name for path in paths if path.is_dir() and visible(path.name))


def _names(chosen: str | Sequence[str]) -> set[str]:
    """Return the names in a selection of classes, which `select` checks; a name can contain commas."""
    return {chosen, *map(str.strip, chosen.split(","))} if isinstance(chosen, str) else set(map(str, chosen))


def _listings(root: Path, classes: Sequence[str]) -> dict[str, Listing]:
    """List the files of each class."""
    if unknown := [name for name in _subfolders(root) if name not in classes]:
        raise UsageError(f"The classes {', '.join(unknown[:5])} in {root} are not in the training set. Remove them.")
    return {name: list_images(root / name) for name in classes if (root / name).is_dir()}  # a test set may lack a class


def _usable(listing: Listing, damaged: Mapping[str, str]) -> list[str]:
    return [image for image in listing.images if image not in damaged]


def _labelled(listings: Mapping[str, Listing], classes: Sequence[str], damaged: Mapping[str, str]) -> Files:
    """Return the paths of the usable images, class by class, and their labels."""
    by_class = [_usable(listings[name], damaged) if name in listings else [] for name in classes]
    label = [c for c, images in enumerate(by_class) for _ in images]
    return [image for images in by_class for image in images], label


def median_size(paths: Sequence[str]) -> tuple[int, int]:
    """Return the median height and the median width of up to SIZE_SAMPLE images, spread evenly over the list."""
    step = max(len(paths) // SIZE_SAMPLE, 1)
    heights, widths = zip(*(image_size(path) for path in paths[::step][:SIZE_SAMPLE]), strict=True)
    return median_high(heights), median_high(widths)

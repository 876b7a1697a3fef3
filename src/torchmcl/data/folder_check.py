"""The check of a folder of images before training: what can be used, and what is wrong with the rest."""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from torchmcl._utils.console import shortened
from torchmcl._utils.logs import report
from torchmcl.data.image_files import EXTENSIONS, inspect_image, pillow_warnings
from torchmcl.errors import UsageError

LOGGER = logging.getLogger(__name__)
SHOWN = 8  # the number of files that a message names
# Folders of network storage, file managers and systems, which contain thumbnails and deleted files.
SYSTEM = (".", "@", "#", "$", "__MACOSX", "lost+found", "System Volume Information", "RECYCLER")


class Listing(NamedTuple):
    """The content of a folder: images, extensions of other files, folders to ignore, folders that cannot be listed."""

    folder: str
    images: list[str]
    others: list[str]
    ignored: list[str]
    closed: dict[str, str]


@dataclass(frozen=True)
class FolderCheck:
    """The result of checking the images below a folder.

    Args:
        root: the folder
        sizes: the height and width of each image that can be read
        damaged: the files that cannot be read, each with the reason
        closed: the folders that cannot be listed, each with the reason
        empty: the class folders without images, each with its number of other files
        ignored: what has another extension, with its number of files, and the hidden and system folders
    """

    root: Path
    sizes: Mapping[str, tuple[int, int]]
    damaged: Mapping[str, str]
    closed: Mapping[str, str]
    empty: Mapping[str, int]
    ignored: Sequence[str]

    @property
    def complete(self) -> bool:
        """Whether everything can be used."""
        return not (self.damaged or self.closed or self.empty)

    def problems(self, path: str) -> str:
        """Name the files and folders that cannot be used, as far as they fit into one line."""
        parts = []
        if self.empty:
            others = {name: f" ({count(n, 'other file')})" if n else "" for name, n in self.empty.items()}
            names = [f"{self._short(name)}{other}" for name, other in others.items()]
            parts.append(f"{count(len(names), 'class folder')} without images: {shortened(names, SHOWN)}")
        for kind, found in (("unreadable folder", self.closed), ("unreadable file", self.damaged)):
            if names := [f"{self._short(name)} ({reason})" for name, reason in found.items()]:
                parts.append(f"{count(len(names), kind)}: {shortened(names, SHOWN)}")
        return f"{path} has {'; '.join(parts)}."

    def notes(self, size: tuple[int, int]) -> list[str]:
        """Describe the sizes of the images, which are resized to `size`, and what is ignored."""
        notes = []
        if self.sizes:
            low, high = (choose(self.sizes.values(), key=lambda one: one[0] * one[1]) for choose in (min, max))
            found = pixels(low) if low == high else f"{pixels(low)} to {pixels(high)}"
            resized = f", resized to {pixels(size)}" if {low, high} != {size} else ""
            notes.append(f"Sizes: {found} pixels (height x width){resized}")
        return [*notes, *([f"Ignored: {shortened(self.ignored, SHOWN)}"] if self.ignored else [])]

    def _short(self, name: str) -> str:
        return os.path.relpath(name, self.root)


def check(root: Path, listings: Sequence[Listing], ignored: Sequence[str] = (), *, beside: int = 0) -> FolderCheck:
    """Decode every image of some class folders below `root`.

    Args:
        root: the folder that contains the class folders
        listings: the content of the class folders
        ignored: the folders beside the class folders
        beside: the number of images beside the class folders
    """
    images = [image for listing in listings for image in listing.images]
    # Pillow releases the lock of the interpreter. The filter of warnings holds for all threads.
    with pillow_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        results = list(threads.map(_inspect, images))
    pairs = list(zip(images, results, strict=True))
    loose = [f"{count(beside, 'image')} beside the class folders"] if beside else []
    folders = [f"{os.path.relpath(name, root)}/" for name in (*ignored, *(n for one in listings for n in one.ignored))]
    kinds = Counter(kind for listing in listings for kind in listing.others)
    return FolderCheck(
        root,
        sizes={name: result for name, result in pairs if not isinstance(result, str)},
        damaged={name: result for name, result in pairs if isinstance(result, str)},
        closed={name: reason for one in listings for name, reason in one.closed.items()},
        empty={one.folder: len(one.others) for one in listings if not one.images and one.folder not in one.closed},
        ignored=[*loose, *folders, *(f"{count(n, 'file')} {kind}".strip() for kind, n in sorted(kinds.items()))],
    )


def list_images(folder: Path) -> Listing:
    """List the images in a folder and its subfolders, in order."""
    listing = Listing(str(folder), [], [], [], {})

    def closed(problem: OSError) -> None:
        listing.closed[str(problem.filename)] = problem.strerror or "cannot be read"

    for at, below, files in os.walk(folder, onerror=closed):
        listing.ignored.extend(os.path.join(at, name) for name in below if not visible(name))
        below[:] = sorted(filter(visible, below))
        for file in sorted(filter(visible, files)):
            if is_image(file):
                listing.images.append(os.path.join(at, file))
            else:
                listing.others.append(os.path.splitext(file)[1].lower())
    return listing


def readable_images(folder: str | Path, *, skip_unreadable: bool = False) -> list[str]:
    """Return the paths of the images in a folder and its subfolders, without those of hidden and system folders.

    Raises:
        UsageError: if something cannot be read; with `skip_unreadable`, it is left out with a warning.
    """
    root = Path(folder).expanduser()
    found = check(root, [list_images(root)])
    if found.damaged or found.closed:
        problems = found.problems(str(folder))
        if not skip_unreadable:
            raise UsageError(f"{problems} Repair or remove them, or leave them out with --skip-unreadable.")
        report(LOGGER, f"{problems} They are left out.", logging.WARNING)
    return list(found.sizes)


def is_image(name: str) -> bool:
    """Return whether a file has the extension of an image.

    >>> is_image("a.JPG"), is_image("notes.txt")
    (True, False)
    """
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def visible(name: str) -> bool:
    """Return whether a file or folder is neither hidden nor one of a system.

    >>> visible("cat"), visible(".git"), visible("@eaDir")
    (True, False, False)
    """
    return not name.startswith(SYSTEM)


def pixels(size: tuple[int, int]) -> str:
    """Format a height and a width."""
    return f"{size[0]} x {size[1]}"


def count(number: int, what: str) -> str:
    """Format a number of things.

    >>> count(1, "file"), count(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _inspect(path: str) -> tuple[int, int] | str:
    """Return the height and width of an image, or why it cannot be read."""
    try:
        state = os.stat(path)
    except OSError as problem:
        return problem.strerror or "cannot be read"
    return _inspected(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=200_000)
def _inspected(path: str, changed: int, size: int) -> tuple[int, int] | str:
    if not size:
        return "empty"
    try:
        return inspect_image(path)
    except UsageError as problem:
        return _reason(problem)


def _reason(problem: UsageError) -> str:
    from PIL import Image, UnidentifiedImageError

    cause = problem.__cause__
    if isinstance(cause, UnidentifiedImageError):
        return "not an image"
    if isinstance(cause, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "too many pixels"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return " ".join(str(cause or problem).split())[:80]

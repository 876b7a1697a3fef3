from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.datasets.image_folder import median_size
from torchmcl.data.examples import DataSet
from torchmcl.data.image_files import open_image
from torchmcl.data.masks import check_mask_size, find_pairs, resize_mask, split_by_group
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE

WHITE = 255  # class 1 in a black-and-white mask


def load(
    path: str, parts: Sequence[str] = ("train", "test"), *, seed: int = 0, size: tuple[int, int] | None = None
) -> DataSet:
    """Load images (N, 3, H, W) and masks (N, H, W) from PATH/images and PATH/masks.

    The mask of an image is the PNG file of the same name. The values in a mask are the classes 0, 1, …, or 255 for
    pixels to ignore. If all masks are black and white (0 and 255), the classes are 0 and 1. PATH/classes.txt can
    contain the names of the classes, one per line. The group of an image is its folder in PATH/images. The test set
    is a fifth of each group, drawn with `seed`. Images (bicubic) and masks (nearest neighbor) are resized to `size`, by
    default the median size of up to 100 images. Raises UsageError if a folder or mask is missing, or if a mask has the
    wrong format.
    """
    root = Path(path).expanduser()
    if not (root / "images").is_dir() or not (root / "masks").is_dir():
        raise UsageError(f"Expected the folders images and masks in {root}. Create both.")
    pairs = find_pairs(root / "images", root / "masks", "**/*")
    if len(pairs) < 2:
        raise UsageError(f"Expected at least two images in {root / 'images'}, found {len(pairs)}.")
    size = size or median_size([str(image) for image, _ in pairs])
    masks = np.stack([read_mask(mask, image, size) for image, mask in pairs])
    if set(np.unique(masks)) <= {0, WHITE}:
        masks = masks // WHITE
    classes = _classes(root, int(masks[masks != IGNORE].max(initial=0)) + 1)
    made = split_by_group(pairs, root / "images", classes, lambda at: masks[at], parts=parts, size=size, seed=seed)
    choices = {"split": "a fifth of each group held out for testing", "split_seed": seed, "size": list(size)}
    return DataSet(f"segmentation-folder:{path}", made, choices=choices)


def read_mask(path: Path, image: Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Read the classes of an image's pixels, (H, W) uint8."""
    check_mask_size(path, image)
    with open_image(path) as mask:
        if mask.mode not in ("1", "L", "P"):
            raise UsageError(
                f"Expected a mask with one 8-bit channel in {path}, got {mask.mode}. Convert the mask to grayscale."
            )
        # The values of a palette image are its classes; the colors are only for display.
        return resize_mask(mask.convert("L") if mask.mode == "1" else mask, size)


def _classes(root: Path, count: int) -> tuple[str, ...]:
    path = root / "classes.txt"
    if not path.is_file():
        if count < 2:
            raise UsageError(f"Expected masks with at least two classes in {root / 'masks'}, got {count}.")
        return ("background", "foreground") if count == 2 else tuple(map(str, range(count)))
    names = tuple(line.strip() for line in path.read_text().splitlines() if line.strip())
    if len(names) < max(count, 2) or len(set(names)) < len(names):
        got = f"{len(names)} names, {len(set(names))} of them unique"
        raise UsageError(f"Expected at least {max(count, 2)} unique names, each once, in {path}, got {got}.")
    return names

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet
from torchmcl.data.image_files import image_size, open_image
from torchmcl.data.masks import Size, check_mask_size, find_pairs, resize_mask, split_by_group
from torchmcl.errors import UsageError

SIZE = (75, 125)
# [I] The paper's "larger than 300x500" is interpreted as "at least 300x500", which leaves 449 of the 643 images.
MIN_SIZE = (300, 500)


def load(
    directory: str | None = None, parts: Sequence[str] = ("train", "test"), *, seed: int = 0, size: Size = SIZE
) -> DataSet:
    """Load iCoseg (Batra et al., 2010): images (N, 3, 75, 125) uint8, masks (N, 75, 125) of 0 and 1, and groups.

    Only images of at least 300 x 500 pixels are used. Images are resized by bicubic interpolation, and masks by
    nearest-neighbor interpolation. The test set is a fifth of each group, drawn with `seed`; a group of one image
    is used for training. The paper describes this data in the section "Segmentation" of its experiments.
    """
    folder = obtain(["icoseg", "iCoseg"], directory)
    found = find_pairs(folder / "images", folder / "ground_truth", "*/*")
    if not found:
        raise UsageError(f"There are no images in {folder}. Put images/GROUP/*.jpg and ground_truth/GROUP/*.png there.")
    # A group without large images is omitted, because the memory would never count an example in its row.
    pairs = [(image, mask) for image, mask in found if all(np.greater_equal(image_size(image), MIN_SIZE))]
    if not pairs:
        raise UsageError(
            f"All images in {folder} are smaller than {MIN_SIZE[0]}x{MIN_SIZE[1]} pixels. Download them again."
        )
    classes, root = ("background", "foreground"), folder / "images"
    made = split_by_group(pairs, root, classes, lambda at: _mask(*pairs[at], size), parts=parts, size=size, seed=seed)
    choices = {
        "images": f"{len(pairs)} of {len(found)}, at least {MIN_SIZE[0]}x{MIN_SIZE[1]}",
        "split": "a fifth of each group held out for testing",
        "split_seed": seed,
    }
    return DataSet("icoseg", made, choices=choices)


def _mask(image: Path, path: Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Read a mask of 0 and 1, (H, W)."""
    check_mask_size(path, image)
    with open_image(path) as mask:
        gray = mask.convert("L")
        values = np.unique(np.asarray(gray))
        small = resize_mask(gray, size)
    if len(values) > 2 or (len(values) == 2 and values[0] != 0):
        raise UsageError(f"The mask {path} has {len(values)} different values. Use 0 and one other value.")
    return (small > 0).astype(np.uint8)

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl._utils import atomic
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import EXTENSIONS, image_size, read_image
from torchmcl.data.strata import train_test_split
from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

Pairs = list[tuple[Path, Path]]  # images and their masks
Mask = Callable[[int], NDArray[np.uint8]]  # index of a pair -> (H, W)
Size = tuple[int, int]
# The color-blind safe palette of Okabe and Ito; class 0 is black.
COLORS = ((0, 0, 0), (255, 255, 255), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178))


def find_pairs(images: Path, masks: Path, pattern: str) -> Pairs:
    """List the images that match `pattern`, each with its mask, which is the PNG file of the same name in `masks`."""
    pairs = []
    for image in sorted(images.glob(pattern)):
        if image.suffix.lower() in EXTENSIONS and not image.name.startswith("."):
            mask = (masks / image.relative_to(images)).with_suffix(".png")
            if not mask.is_file():
                raise UsageError(f"The image {image} has no mask. Add {mask}.")
            pairs.append((image, mask))
    return pairs


def check_mask_size(mask: Path, image: Path) -> None:
    """Raise UsageError if a mask and its image have different sizes."""
    if (got := image_size(mask)) != (expected := image_size(image)):
        raise UsageError(f"The mask {mask} has size {got}, but {image} has size {expected}. Resize the mask.")


def resize_mask(mask: "Image", size: Size) -> NDArray[np.uint8]:
    """Resize a mask by nearest-neighbor interpolation and return its values (H, W)."""
    from PIL import Image

    return np.asarray(mask.resize((size[1], size[0]), Image.Resampling.NEAREST), dtype=np.uint8)


def split_by_group(
    pairs: Pairs, root: Path, classes: tuple[str, ...], mask: Mask, *, parts: Sequence[str], size: Size, seed: int
) -> dict[str, Examples]:
    """Read the images, hold out a fifth of each group for testing, and return the requested parts.

    The group of an image is its folder below `root`.
    """
    names = [str(image.parent.relative_to(root)) for image, _ in pairs]
    groups = sorted(set(names))
    group = torch.tensor([groups.index(name) for name in names])
    split = train_test_split(group, seed=seed)
    made = {}
    for part in parts:
        index = split[part].tolist()
        images = torch.from_numpy(np.stack([read_image(pairs[at][0], size) for at in index]))
        target = torch.from_numpy(np.stack([mask(at) for at in index]))
        made[part] = Examples(images, target, classes, group[index], tuple(groups))
    return made


def write_mask(path: Path, label: Tensor, size: Size) -> None:
    """Resize a mask of class indices (H, W) to `size` and write the indices as pixel values of a palette PNG file."""
    from PIL import Image

    image = Image.fromarray(resize_mask(Image.fromarray(label.to("cpu").numpy().astype(np.uint8)).convert("L"), size))
    image.putpalette([value for i in range(256) for value in COLORS[i if i < 2 else 2 + (i - 2) % (len(COLORS) - 2)]])
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    atomic.write(path, buffer.getvalue())

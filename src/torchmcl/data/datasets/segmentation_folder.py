from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.data.datasets.image_folder import median_size
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import EXTENSIONS, image_size, opened, read_image
from torchmcl.data.strata import Purpose, hold_out
from torchmcl.errors import UsageError
from torchmcl.structures.state import IGNORE

WHITE = 255  # what a mask of two classes has for 1


def load(
    path: str, parts: Sequence[str] = ("train", "test"), *, seed: int = 0, size: tuple[int, int] | None = None
) -> DataSet:
    """PATH/images and PATH/masks, a mask for each image, of the same name: images (N, 3, H, W), masks (N, H, W).

    A mask's pixels are classes, 0, 1, …, or 255 where they do not count; in masks of black and white only, 0 and 255,
    the classes are 0 and 1. PATH/classes.txt names them, one per line. The group of an image is its folder below
    images, one for all where there is none; a fifth of each group, chosen by `seed`, is the test set. Images are
    resized by bicubic, masks by nearest neighbour, to `size` or the median.
    """
    root = Path(path).expanduser()
    pairs = _pairs(root)
    size = size or median_size([str(image) for image, _ in pairs])
    groups = sorted({_group(image, root) for image, _ in pairs})
    group = torch.tensor([groups.index(_group(image, root)) for image, _ in pairs])
    masks = np.stack([read_mask(mask, image, size) for image, mask in pairs])
    if set(np.unique(masks)) <= {0, WHITE}:
        masks = masks // WHITE
    classes = _classes(root, int(masks[masks != IGNORE].max(initial=0)) + 1)
    places = dict(zip(("train", "test"), hold_out(group, 0.2, seed=seed, purpose=Purpose.TEST), strict=True))
    made = {}
    for part in parts:
        chosen = places[part].tolist()
        images = np.stack([read_image(pairs[at][0], size) for at in chosen])
        made[part] = Examples(
            torch.from_numpy(images), torch.from_numpy(masks[chosen]), classes, group[places[part]], tuple(groups)
        )
    choices = {"split": "a fifth of each group for the test", "split_seed": seed, "size": list(size)}
    return DataSet(f"segmentation-folder:{path}", made, choices=choices)


def read_mask(path: Path, image: Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The classes of an image's pixels, (H, W) uint8; the mask must have the image's size."""
    from PIL import Image

    if (got := image_size(path)) != (expected := image_size(image)):
        raise UsageError(f"Expected a mask of {expected} for {image}, got {got} in {path}.")
    with opened(path) as mask:
        if mask.mode not in ("1", "L", "P"):
            raise UsageError(f"Expected a mask of one channel of 8 bits in {path}, got {mask.mode}. Save it as grey.")
        # A palette's colours are for people: its numbers are the classes.
        indexed = mask.convert("L") if mask.mode == "1" else mask
        return np.asarray(indexed.resize((size[1], size[0]), Image.Resampling.NEAREST), dtype=np.uint8)


def _pairs(root: Path) -> list[tuple[Path, Path]]:
    if not (root / "images").is_dir() or not (root / "masks").is_dir():
        raise UsageError(f"Expected the folders images and masks in {root}, found not both.")
    pairs = []
    for image in sorted((root / "images").rglob("*")):
        if image.suffix.lower() in EXTENSIONS and not image.name.startswith("."):
            mask = (root / "masks" / image.relative_to(root / "images")).with_suffix(".png")
            if not mask.is_file():
                raise UsageError(f"Expected the mask of {image} at {mask}, there is none.")
            pairs.append((image, mask))
    if len(pairs) < 2:
        raise UsageError(f"Expected two images or more in {root / 'images'}, found {len(pairs)}.")
    return pairs


def _group(image: Path, root: Path) -> str:
    return str(image.parent.relative_to(root / "images"))


def _classes(root: Path, count: int) -> tuple[str, ...]:
    named = root / "classes.txt"
    if not named.is_file():
        if count < 2:
            raise UsageError(f"Expected masks of two classes or more in {root / 'masks'}, got {count}.")
        return ("background", "foreground") if count == 2 else tuple(map(str, range(count)))
    names = tuple(line.strip() for line in named.read_text().splitlines() if line.strip())
    if len(names) < max(count, 2) or len(set(names)) < len(names):
        raise UsageError(f"Expected {max(count, 2)} different names or more in {named}, got {len(set(names))}.")
    return names

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.data.download import obtain
from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import EXTENSIONS, image_size, opened, read_image
from torchmcl.data.strata import Purpose, hold_out
from torchmcl.errors import UsageError

SIZE = (75, 125)
LEAST = (300, 500)  # [I] the paper's "larger than 300x500", read as at least so: 449 of the 643 images


def load(
    directory: str | None = None,
    parts: Sequence[str] = ("train", "test"),
    *,
    seed: int = 0,
    size: tuple[int, int] | None = None,
) -> DataSet:
    """iCoseg of Batra et al. 2010: images (N, 3, 75, 125) uint8, masks (N, 75, 125) of 0 and 1, and each image's group.

    Images of at least 300 x 500 pixels, resized by bicubic, their masks by nearest neighbour; a fifth of each group is
    the test set, chosen by `seed`, but for a group of one image, which is trained on. Section "Segmentation" of the
    paper's experiments.
    """
    folder = obtain(["icoseg", "iCoseg"], directory)
    every = _pairs(folder)
    pairs = [(image, mask) for image, mask in every if all(np.greater_equal(image_size(image), LEAST))]
    if not pairs:
        raise UsageError(f"Expected images of at least {LEAST[0]}x{LEAST[1]} in {folder}, found none.")
    # A group without such images has no row in the memory: nothing would ever be counted in it.
    groups = sorted({image.parent.name for image, _ in pairs})
    group = torch.tensor([groups.index(image.parent.name) for image, _ in pairs])
    places = dict(zip(("train", "test"), hold_out(group, 0.2, seed=seed, purpose=Purpose.TEST), strict=True))
    made = {}
    for part in parts:
        chosen = [pairs[at] for at in places[part].tolist()]
        images = np.stack([read_image(image, size or SIZE) for image, _ in chosen])
        masks = np.stack([_mask(mask, image, size or SIZE) for image, mask in chosen])
        made[part] = Examples(
            torch.from_numpy(images),
            torch.from_numpy(masks),
            ("background", "foreground"),
            group[places[part]],
            tuple(groups),
        )
    return DataSet(
        "icoseg",
        made,
        choices={
            "images": f"{len(pairs)} of {len(every)}, those of at least {LEAST[0]}x{LEAST[1]}",
            "split": "a fifth of each group for the test",
            "split_seed": seed,
        },
    )


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Each image and its mask, group by group."""
    pairs = []
    for image in sorted((folder / "images").glob("*/*")):
        if image.suffix.lower() in EXTENSIONS and not image.name.startswith("."):
            mask = folder / "ground_truth" / image.parent.name / f"{image.stem}.png"
            if not mask.is_file():
                raise UsageError(f"Expected the mask of {image} at {mask}, there is none.")
            pairs.append((image, mask))
    if not pairs:
        raise UsageError(
            f"Expected images/GROUP/*.jpg and ground_truth/GROUP/*.png in {folder}, found no images. "
            "Put both folders of iCoseg there."
        )
    return pairs


def _mask(path: Path, image: Path, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A mask of 0 and 1, (H, W)."""
    from PIL import Image

    if (got := image_size(path)) != (expected := image_size(image)):
        raise UsageError(f"Expected a mask of {expected} for {image}, got {got} in {path}.")
    with opened(path) as mask:
        grey = mask.convert("L")
        values = np.unique(np.asarray(grey))
        small = np.asarray(grey.resize((size[1], size[0]), Image.Resampling.NEAREST))
    if len(values) > 2 or (len(values) == 2 and values[0] != 0):
        raise UsageError(f"Expected a mask of 0 and one other value in {path}, got {len(values)} values.")
    return (small > 0).astype(np.uint8)

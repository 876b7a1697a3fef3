import io
from pathlib import Path

import numpy as np
from torch import Tensor

from torchmcl._utils import atomic

# Okabe and Ito's colours, told apart by the colour-blind; class 0 is black.
COLOURS = ((0, 0, 0), (255, 255, 255), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178))


def write_mask(path: Path, label: Tensor, size: tuple[int, int]) -> None:
    """Write classes (H, W) as a PNG of `size` (H, W) whose pixel values are the classes, shown in colours."""
    from PIL import Image

    image = Image.fromarray(label.to("cpu").numpy().astype(np.uint8)).convert("L")
    image = image.resize((size[1], size[0]), Image.Resampling.NEAREST)
    image.putpalette([value for i in range(256) for value in COLOURS[i if i < 2 else 2 + (i - 2) % (len(COLOURS) - 2)]])
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    atomic.write(path, buffer.getvalue())

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.images import to_rgb
from torchmcl.analysis.informative import informative_examples
from torchmcl.data.examples import Examples
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.metrics import pixel_errors
from torchmcl.structures.state import IGNORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ((230, 159, 0), (86, 180, 233), (204, 121, 167), (240, 228, 66), (0, 114, 178))  # for classes 1, 2, …
AUXILIARY = (0, 158, 80)  # green, as in the paper


def overlays(specialists: Specialists, examples: Examples, chosen: Sequence[int] | None = None) -> "Figure":
    """Plot images with the target mask, the mask of each member, and the mask of the ensemble, one image per row.

    Classes are drawn over the image in colour. The auxiliary class of a member, and pixels of the ensemble's mask that
    no member claims, are green. Each title contains the percentage of
    wrong pixels. For this percentage, auxiliary pixels are replaced by the member's most probable real class.

    Args:
        specialists: a trained segmentation ensemble
        examples: images with masks (N, H, W)
        chosen: the indices of the images; by default, three informative images

    Raises:
        UsageError: if the examples have no masks.
    """
    if examples.target.ndim < 3:
        raise UsageError(f"Expected masks (N, H, W), got targets of shape {tuple(examples.target.shape)}.")
    chosen = most_informative(specialists, examples) if chosen is None else chosen
    subset = examples.subset(torch.tensor(list(chosen)))
    images = subset.images[torch.arange(len(subset))]
    answer = specialists.predict(images, batch_size=64)
    members, classes = len(answer.members), len(specialists.classes)
    ignored = specialists.method.task.ignore_index
    errors = 100 * pixel_errors(answer.members[:, :, :classes], subset.target, ignored)
    ensemble_errors = 100 * pixel_errors(answer.probabilities[None], subset.target, ignored)[0]
    height, width = images.shape[2:]
    figure = style.new(1.75 * (members + 3), len(subset) * (1.75 * height / width + 0.3))
    for row, axes in enumerate(figure.subplots(len(subset), members + 3, squeeze=False)):
        name = subset.groups[int(subset.group[row])] if subset.group is not None else ""
        show(axes[0], images[row], None, style.label(name, 26))
        show(axes[1], images[row], subset.target[row], "target")
        for m in range(members):
            mask = answer.members[m, row].argmax(0)
            show(axes[2 + m], images[row], mask, f"member {m + 1}: {errors[m, row]:.1f} %", auxiliary=classes)
        marked = answer.label[row].masked_fill(~answer.claimed[row], classes)
        show(axes[-1], images[row], marked, f"ensemble: {ensemble_errors[row]:.1f} %", auxiliary=classes)
    return figure


def most_informative(specialists: Specialists, examples: Examples, count: int = 3) -> list[int]:
    """Return the indices of images on which the members' errors differ most and the ensemble's error is low."""
    answer = specialists.predict(examples.images[torch.arange(len(examples))], batch_size=64)
    ignored = specialists.method.task.ignore_index
    errors = pixel_errors(answer.members, examples.target, ignored)
    ensemble_errors = pixel_errors(answer.probabilities[None], examples.target, ignored)[0]
    groups = range(len(examples)) if examples.group is None else examples.group.tolist()
    return informative_examples(errors, ensemble_errors, groups, count)


def show(axes: "Axes", image: Tensor, label: Tensor | None, title: str, *, auxiliary: int | None = None) -> None:
    """Draw an image (C, H, W) with a mask (H, W) over the image."""
    axes.imshow(overlay(image, label, auxiliary=auxiliary), interpolation="none")
    axes.set_title(title, fontsize=8)
    axes.axis("off")


def overlay(image: Tensor, label: Tensor | None, *, auxiliary: int | None = None) -> NDArray[np.uint8]:
    """Draw a mask (H, W) in colour over an image (C, H, W) -> (H, W, 3) uint8.

    Pixels of class 0 and ignored pixels are only desaturated.

    >>> overlay(torch.zeros(1, 1, 2, dtype=torch.uint8), torch.tensor([[0, 1]]), auxiliary=2)[0].tolist()
    [[0, 0, 0], [126, 87, 0]]
    """
    rgb = to_rgb(image)
    if label is None:
        return rgb
    blended = 0.35 * rgb + 0.65 * rgb.mean(-1, keepdims=True)  # desaturated, so that the classes stand out
    for c in (c for c in label.unique().tolist() if c not in (0, IGNORE)):
        colour = AUXILIARY if c == auxiliary else COLOURS[(c - 1) % len(COLOURS)]
        pixels = label.numpy() == c
        blended[pixels] = 0.45 * blended[pixels] + 0.55 * np.array(colour)
    return blended.clip(0, 255).astype(np.uint8)

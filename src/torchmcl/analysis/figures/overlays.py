from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.informative import informative_examples
from torchmcl.analysis.picture import picture
from torchmcl.data.examples import Examples
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Answer, Specialists
from torchmcl.metrics import pixel_errors
from torchmcl.structures.state import IGNORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOREGROUND = (230, 159, 0)  # orange, and further classes
OTHERS = ((86, 180, 233), (204, 121, 167), (240, 228, 66), (0, 114, 178))
AUXILIARY = (0, 158, 80)  # green, as in the paper


def overlays(specialists: Specialists, examples: Examples, chosen: Sequence[int] | None = None) -> "Figure":
    """A grid: for each chosen image of `examples` itself, the truth, what each member says, and the ensemble.

    Classes are laid over the image in colour, pixels that a member gives to the auxiliary class in green; a title has
    the member's error in percent of the pixels, auxiliary ones counted as its best real class. Three telling images
    are chosen unless given.
    """
    if examples.target.ndim < 3:
        raise UsageError(f"Expected masks (N, H, W) to lay over images, got targets {tuple(examples.target.shape)}.")
    chosen = most_informative(specialists, examples) if chosen is None else chosen
    few = examples.subset(torch.tensor(list(chosen)))
    images = few.images[torch.arange(len(few))]
    answer = specialists.predict(images, batch_size=64)
    members, classes = len(answer.members), len(specialists.classes)
    ignored = specialists.method.task.ignore_index
    errors = 100 * pixel_errors(answer.members[:, :, :classes], few.target, ignored)
    together = 100 * pixel_errors(answer.probabilities[None], few.target, ignored)[0]
    height, width = images.shape[2:]
    figure = style.new(1.75 * (members + 3), len(few) * (1.75 * height / width + 0.3))
    grid = figure.subplots(len(few), members + 3, squeeze=False)
    for row, axes in enumerate(grid):
        name = few.groups[int(few.group[row])] if few.group is not None else ""
        show(axes[0], images[row], None, style.named(name, 26))
        show(axes[1], images[row], few.target[row], "truth")
        for m in range(members):
            said = answer.members[m, row].argmax(0)
            show(axes[2 + m], images[row], said, f"member {m + 1}: {errors[m, row]:.1f} %", auxiliary=classes)
        show(axes[-1], images[row], answer.label[row], f"ensemble: {together[row]:.1f} %")
    return figure


def most_informative(specialists: Specialists, examples: Examples, count: int = 3) -> list[int]:
    """Images that members differ on most and the ensemble gets right; see `informative_examples`."""
    answer: Answer = specialists.predict(examples.images[torch.arange(len(examples))], batch_size=64)
    ignored = specialists.method.task.ignore_index
    errors = pixel_errors(answer.members, examples.target, ignored)
    together = pixel_errors(answer.probabilities[None], examples.target, ignored)[0]
    groups = range(len(examples)) if examples.group is None else examples.group.tolist()
    return informative_examples(errors, together, groups, count)


def show(axes: "Axes", image: Tensor, label: Tensor | None, title: str, *, auxiliary: int | None = None) -> None:
    """An image (C, H, W) with classes (H, W) laid over it."""
    axes.imshow(laid_over(image, label, auxiliary=auxiliary), interpolation="none")
    axes.set_title(title, fontsize=8)
    axes.axis("off")


def laid_over(image: Tensor, label: Tensor | None, *, auxiliary: int | None = None) -> NDArray[np.uint8]:
    """Classes (H, W) in colour over an image (C, H, W) -> (H, W, 3) bytes.

    The first class and pixels to ignore are left as they are.

    >>> laid_over(torch.zeros(1, 1, 2, dtype=torch.uint8), torch.tensor([[0, 1]]), auxiliary=2)[0].tolist()
    [[0, 0, 0], [126, 87, 0]]
    """
    plain = picture(image)
    if label is None:
        return plain
    shown = 0.35 * plain + 0.65 * plain.mean(-1, keepdims=True)  # colours are for the classes
    for c in (c for c in label.unique().tolist() if c not in (0, IGNORE)):
        colour = AUXILIARY if c == auxiliary else (FOREGROUND, *OTHERS)[(c - 1) % (1 + len(OTHERS))]
        shown[label.numpy() == c] = 0.45 * shown[label.numpy() == c] + 0.55 * np.array(colour)
    return shown.clip(0, 255).astype(np.uint8)

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmcl.analysis import style
from torchmcl.analysis.images import to_rgb
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORRECT, NOT_MINE = "#00796b", "#ffcc80"
MAX_PICTURED, MAX_NUMBERED, MAX_NAMED = 12, 20, 40


def who_knows_what(evaluation: RunEvaluation) -> "Figure":
    """Plot the mean probability that each member gives to the correct class, and to "not mine", for each class."""
    test, target = evaluation.test, evaluation.examples.target
    correct = (-test.get("cross_entropy")).exp()
    not_mine = test.get("auxiliary") if evaluation.auxiliary else torch.zeros_like(correct)
    names = evaluation.examples.classes
    of_class = [target == c for c in range(len(names))]
    known, left = (torch.stack([part[own].mean(0) for own in of_class]).numpy() for part in (correct, not_mine))
    pictured = evaluation.has_images and len(names) <= MAX_PICTURED and all(bool(own.any()) for own in of_class)
    images = (
        [to_rgb(image.numpy()) for image in evaluation.images([int(own.nonzero()[0]) for own in of_class])]
        if pictured
        else []
    )
    long = max(map(len, names)) > 4
    figure = style.new(
        max(4.6, 0.9 + 0.5 * min(len(names), 18)), 1.1 + 0.36 * evaluation.members + 0.5 * bool(images) + 0.5 * long
    )
    axes = figure.subplots()
    panel(axes, known, left, images, numbered=len(names) <= MAX_NUMBERED)
    shown = range(0, len(names), -(-len(names) // MAX_NAMED))
    axes.set_xticks([c + 0.5 for c in shown], [style.label(names[c], 14) for c in shown], rotation=90 if long else 0)
    axes.tick_params(labelsize=8)
    return figure


def panel(
    axes: "Axes",
    correct: NDArray[Any],
    not_mine: NDArray[Any],
    images: Sequence[NDArray[np.uint8]] = (),
    *,
    numbered: bool = True,
    ink: str = "black",
) -> None:
    """Draw one ensemble, with one row per member and one column per class below an image of the class.

    Args:
        axes: the axes to draw on
        correct: the mean probability of the correct class, (classes, M)
        not_mine: the mean probability of the auxiliary class, (classes, M)
        images: an image of each class, (H, W, 3)
        numbered: whether each cell contains the probability of the correct class in percent
        ink: the colour of text
    """
    from matplotlib.colors import to_rgb as rgb

    classes, members = correct.shape
    known = (correct + not_mine).clip(1e-9, 1)
    shares = np.stack([correct, not_mine], -1) / known[..., None]
    colours = np.concatenate([shares @ np.array([rgb(CORRECT), rgb(NOT_MINE)]), known[..., None]], -1)
    axes.imshow(
        colours.transpose(1, 0, 2).clip(0, 1), aspect="auto", extent=(0, classes, members, 0), interpolation="none"
    )
    for c, image in enumerate(images):
        axes.imshow(image, extent=(c + 0.1, c + 0.9, -0.1, -1.1), aspect="auto")
    for (c, m), value in np.ndenumerate(correct) if numbered else ():
        own, colour = value > 0.5, style.text_on(colours[c, m].tolist())
        colour = ink if colour == "black" else colour
        style_of: dict[str, Any] = {"weight": "bold" if own else "normal", "alpha": 1 if own else 0.8}
        text = f"{100 * value:.0f}" if value == value else ""
        axes.text(c + 0.5, m + 0.5, text, color=colour, size=8, ha="center", va="center", **style_of)
    axes.set(xlim=(0, classes), ylim=(members, -1.15 if len(images) else 0), xticks=[])
    axes.set_yticks(np.arange(members) + 0.5, [f"member {m + 1}" for m in range(members)], size=8, color=ink)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    lines: dict[str, Any] = {"color": "white", "linewidth": 1.5 if classes <= MAX_NAMED else 0.3}
    axes.hlines(range(members + 1), 0, classes, **lines)
    axes.vlines(range(classes + 1), 0, members, **lines)

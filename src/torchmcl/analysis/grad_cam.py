from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.analysis import style
from torchmcl.analysis.images import to_rgb
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.objectives.dataset_pass import evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_MAP = 3  # smallest height and width of a map that marks regions


def grad_cam(specialists: Specialists, images: Tensor, target: Tensor) -> Tensor:
    """Compute the Grad-CAM map (Selvaraju et al. 2017) of every member for the target class.

    The maps are computed with captum at the input of each member's global average pooling, or of the pooling in a trunk
    that all members share. Each map is divided by its
    maximum. A map without positive values is 0 everywhere.

    Args:
        specialists: the trained ensemble
        images: the images, uint8 (B, C, H, W)
        target: the target classes (B,)

    Returns:
        The maps (M, B, H, W), from 0 to 1.

    Raises:
        UsageError: if captum is not installed or a member has no global average pooling.
    """
    try:
        from captum.attr import LayerGradCam
    except ImportError as error:
        raise UsageError("Grad-CAM needs captum. Install it with: pip install 'torchmcl[plots]'") from error

    ensemble, target = specialists.ensemble, target.to(specialists.device)
    x = specialists.prepare(images.to(specialists.device)).detach().requires_grad_()
    maps = []
    with evaluating(ensemble):  # `outputs` would disable gradients
        for m in range(len(ensemble.bodies)):
            explainer = LayerGradCam(lambda x, m=m: ensemble(x).logits[m], pooling(ensemble.bodies[m], ensemble.stems))
            coarse = explainer.attribute(x, target, attribute_to_layer_input=True, relu_attributions=True).detach()
            fine = F.interpolate(coarse, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
            maps.append(fine / fine.amax((1, 2), keepdim=True).clamp_min(1e-12))
    return torch.stack(maps).cpu()


def shows_regions(specialists: Specialists) -> bool | None:
    """Return whether Grad-CAM maps have at least 3 x 3 values for the run's images; None if there are no maps.

    Smaller maps, such as those of a deep network on 8 x 8 pixels, mark no regions.
    """
    ensemble, sizes = specialists.ensemble, []
    try:
        layer = pooling(ensemble.bodies[0], ensemble.stems)
    except UsageError:
        return None
    hook = layer.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[-2:]))
    try:
        specialists.predict(torch.zeros(1, *specialists.model_config.shape, dtype=torch.uint8))
    finally:
        hook.remove()
    return bool(sizes) and min(sizes[-1]) >= MIN_MAP


def pooling(body: object, stems: nn.Module | None = None) -> nn.Module:
    """Return the last global average pooling layer of a body or its stem. Raise UsageError if there is none."""
    parts = [part for part in (stems, body) if isinstance(part, nn.Module)]
    layers = [module for part in parts for module in part.modules() if isinstance(module, nn.AdaptiveAvgPool2d)]
    if not layers:
        raise UsageError("Grad-CAM needs global average pooling. Use a network with nn.AdaptiveAvgPool2d.")
    return layers[-1]


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a Grad-CAM grid.

    Args:
        title: the label of the row
        image: the image (C, H, W)
        maps: the map of each member, (M, H, W)
        probabilities: each member's probability of the target class, (M,)
        own: whether each member owns the image's class, (M,)
    """

    title: str
    image: np.ndarray
    maps: np.ndarray
    probabilities: Sequence[float]
    own: Sequence[bool]


def grid(rows: Sequence[Row]) -> "Figure":
    """Draw one row per image: the image, and each member's map over it. Frames mark the owners of the image's class."""
    members = len(rows[0].maps)
    figure = style.new(1.25 * (members + 1) + 0.9, 1.42 * len(rows))
    for axes, row in zip(figure.subplots(len(rows), members + 1, squeeze=False), rows, strict=True):
        for axis in axes:
            axis.imshow(to_rgb(row.image), interpolation="none")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        axes[0].set_ylabel(row.title, fontsize=8)
        for m, axis in enumerate(axes[1:]):
            axis.imshow(row.maps[m], cmap="inferno", alpha=0.55, vmin=0, vmax=1, interpolation="none")
            axis.set_title(f"member {m + 1}: {row.probabilities[m]:.2f}", fontsize=7, pad=2)
            if row.own[m]:
                axis.spines[:].set(visible=True, color=style.OWNER, linewidth=2.5)
    return figure

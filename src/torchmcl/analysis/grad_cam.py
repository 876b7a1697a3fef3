from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchmcl.analysis import style
from torchmcl.analysis.picture import picture
from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.objectives.dataset_pass import evaluating

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def grad_cam(specialists: Specialists, images: Tensor, target: Tensor) -> Tensor:
    """Where each member looks for the target: images (B, C, H, W) uint8, target (B,) -> maps (M, B, H, W) of 0 to 1.

    Grad-CAM, Selvaraju et al. 2017, by captum, at what each member's global average pooling is given. Each map is
    divided by its maximum; one without any positive part is 0.
    """
    try:
        from captum.attr import LayerGradCam
    except ImportError as absent:
        raise UsageError("Expected captum for Grad-CAM, found none. Try: pip install 'torchmcl[plots]'") from absent

    ensemble, target = specialists.ensemble, target.to(specialists.device)
    x = specialists.prepare(images.to(specialists.device))
    maps = []
    with evaluating(ensemble):  # and not `outputs`, since it needs gradients
        for m in range(len(ensemble.bodies)):
            of_member = LayerGradCam(lambda x, m=m: ensemble(x).logits[m], pooling(ensemble.bodies[m]))
            raw = of_member.attribute(x, target, attribute_to_layer_input=True, relu_attributions=True).detach()
            fine = F.interpolate(raw, size=images.shape[2:], mode="bilinear", align_corners=False)[:, 0]
            maps.append(fine / fine.amax((1, 2), keepdim=True).clamp_min(1e-12))
    return torch.stack(maps).cpu()


def pooling(body: object) -> nn.Module:
    """A network's global average pooling."""
    parts = body.modules() if isinstance(body, nn.Module) else ()
    found = [module for module in parts if isinstance(module, nn.AdaptiveAvgPool2d)]
    if not found:
        raise UsageError("Expected a network with a global average pooling to look at, got one without.")
    return found[-1]


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a grid: an image (C, H, W), and of each member its map (M, H, W), truth's probability, ownership."""

    title: str
    image: np.ndarray
    maps: np.ndarray
    truth: Sequence[float]
    own: Sequence[bool]


def grid(rows: Sequence[Row]) -> "Figure":
    """Images, each with every member's map over it; a frame is round the members whose class it is."""
    members = len(rows[0].maps)
    figure = style.new(1.25 * (members + 1) + 0.9, 1.42 * len(rows))
    for axes, row in zip(figure.subplots(len(rows), members + 1, squeeze=False), rows, strict=True):
        shown = picture(row.image)
        plain(axes[0], shown)
        axes[0].set_ylabel(row.title, fontsize=8)
        for m in range(members):
            plain(axes[1 + m], shown)
            axes[1 + m].imshow(row.maps[m], cmap="inferno", alpha=0.55, vmin=0, vmax=1, interpolation="none")
            axes[1 + m].set_title(f"member {m + 1}: {row.truth[m]:.2f}", fontsize=7, pad=2)
            if row.own[m]:
                for spine in axes[1 + m].spines.values():
                    spine.set(visible=True, color=style.OWNER, linewidth=2.5)
    return figure


def plain(axes: "Axes", shown: np.ndarray) -> None:
    """An image without ticks or frame."""
    axes.imshow(shown, interpolation="none")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)

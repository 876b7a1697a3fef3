from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchmcl.analysis import style
from torchmcl.analysis.grad_cam import Row, grad_cam, grid
from torchmcl.analysis.informative import telling
from torchmcl.analysis.run_evaluation import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def grad_cam_grid(look: Look, chosen: Sequence[int] | None = None, *, count: int = 5) -> "Figure":
    """Where every member looks for the truth, on chosen test images or the most telling; owners are framed."""
    truth = (-look.test.gathered("cross_entropy")).exp()  # (N, M)
    labels = look.examples.target
    if chosen is None:
        chosen = telling(1 - truth.T, 1 - look.test.gathered("truth"), labels.tolist(), count)
    images = look.images(chosen)
    maps = grad_cam(look.specialists, images, labels[list(chosen)])
    own = torch.zeros_like(truth, dtype=torch.bool) if look.own is None or not look.specialised else look.own
    return grid(
        [
            Row(
                style.named(look.examples.classes[int(labels[at])], 14),
                images[row].numpy(),
                maps[:, row].numpy(),
                truth[at].tolist(),
                own[at].tolist(),
            )
            for row, at in enumerate(chosen)
        ]
    )

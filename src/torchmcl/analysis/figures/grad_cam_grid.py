from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchmcl.analysis import style
from torchmcl.analysis.grad_cam import Row, grad_cam, grid
from torchmcl.analysis.informative import informative_examples
from torchmcl.analysis.run_evaluation import RunEvaluation

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def grad_cam_grid(evaluation: RunEvaluation, chosen: Sequence[int] | None = None, *, count: int = 5) -> "Figure":
    """Plot Grad-CAM maps for the target class on the test images `chosen`, by default on `count` informative images."""
    members = (-evaluation.test.get("cross_entropy")).exp()  # probability of the target, (N, M)
    labels = evaluation.examples.target
    if chosen is None:
        ensemble_errors = 1 - evaluation.test.get("target_probability")
        chosen = informative_examples(1 - members.T, ensemble_errors, labels.tolist(), count)
    images = evaluation.images(chosen)
    maps = grad_cam(evaluation.specialists, images, labels[list(chosen)])
    own = torch.zeros_like(members, dtype=torch.bool)  # no frames unless members specialise
    if evaluation.own is not None and evaluation.specialised:
        own = evaluation.own
    rows = []
    for i, example in enumerate(chosen):
        title = style.label(evaluation.examples.classes[int(labels[example])], 14)
        values = members[example].tolist(), own[example].tolist()
        rows.append(Row(title, images[i].numpy(), maps[:, i].numpy(), *values))
    return grid(rows)

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
    """Where every member looks for the truth, on chosen test images or the most telling; owners are framed."""
    truth = (-evaluation.test.gathered("cross_entropy")).exp()  # (N, M)
    labels = evaluation.examples.target
    if chosen is None:
        chosen = informative_examples(1 - truth.T, 1 - evaluation.test.gathered("truth"), labels.tolist(), count)
    images = evaluation.images(chosen)
    maps = grad_cam(evaluation.specialists, images, labels[list(chosen)])
    own = (
        torch.zeros_like(truth, dtype=torch.bool)
        if evaluation.own is None or not evaluation.specialised
        else evaluation.own
    )
    return grid(
        [
            Row(
                style.named(evaluation.examples.classes[int(labels[at])], 14),
                images[row].numpy(),
                maps[:, row].numpy(),
                truth[at].tolist(),
                own[at].tolist(),
            )
            for row, at in enumerate(chosen)
        ]
    )

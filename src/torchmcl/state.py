from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class State:
    """Where training stands, handed to an objective by the loop.

    `epoch` counts from 1 to `epochs`. `group` (B,) is the class that a memory counts: the target by default, for
    segmentation the group of each image. `index` (B,) numbers the examples in the training set; only methods that
    remember single examples (MCL, MCL-KD) ask for it. `sample_weight` (B,), from 0 on, says how often each example
    counts: once by default, in losses and memories alike. `shared` is what the costs of one batch compute once for all.

    >>> State(epoch=3, epochs=100)
    State(epoch=3, epochs=100, group=None, index=None, sample_weight=None)
    """

    epoch: int = 1
    epochs: int = 1
    group: Tensor | None = None
    index: Tensor | None = None
    sample_weight: Tensor | None = None
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def mean(self, cost: Tensor) -> Tensor:
        """The mean over examples and pixels, (B, …) -> scalar: sum_b s_b cost_b / sum_b s_b.

        >>> import torch
        >>> State(sample_weight=torch.tensor([3.0, 1.0])).mean(torch.tensor([1.0, 2.0]))
        tensor(1.2500)
        """
        if self.sample_weight is None:
            return cost.mean()
        by_example, weight = cost.flatten(1).mean(1) if cost.ndim > 1 else cost, self.sample_weight.to(cost.dtype)
        return (weight * by_example).sum() / weight.sum()

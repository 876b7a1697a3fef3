from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class State:
    """Where training stands, handed to an objective by the loop.

    `epoch` counts from 1 to `epochs`. `group` (B,) is the class that a memory counts: the target by default, for
    segmentation the group of each image. `index` (B,) numbers the examples in the training set; only methods that
    remember single examples (MCL, MCL-KD) ask for it.

    >>> State(epoch=3, epochs=100)
    State(epoch=3, epochs=100, group=None, index=None)
    """

    epoch: int = 1
    epochs: int = 1
    group: Tensor | None = None
    index: Tensor | None = None

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class State:
    """Where training stands, handed to an objective by the loop.

    `epoch` counts from 1 to `epochs`. `group` (B,) is the class that a memory counts: the target by default, for
    segmentation the group of each image. `index` (B,) numbers the examples in the training set; only methods that
    remember single examples (MCL, MCL-KD) ask for it. `shared` is what the costs of one batch compute once for all.

    >>> State(epoch=3, epochs=100)
    State(epoch=3, epochs=100, group=None, index=None)
    """

    epoch: int = 1
    epochs: int = 1
    group: Tensor | None = None
    index: Tensor | None = None
    shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

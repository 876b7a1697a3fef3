from typing import NamedTuple

from torch import Tensor


class Outcome(NamedTuple):
    """What an objective makes of a batch: `loss` to minimise; (M, B) each, `weights`, cost to `take` and to `leave`."""

    loss: Tensor
    weights: Tensor
    take: Tensor
    leave: Tensor

from typing import NamedTuple

from torch import Tensor


class Outcome(NamedTuple):
    """The result of an objective for a batch.

    Attributes:
        loss: The scalar to minimise.
        weights: (M, B), the assignment: the weight with which each member takes each example.
        take: (M, B), the cost for each member of taking each example.
        leave: (M, B), the cost for each member of leaving each example.
    """

    loss: Tensor
    weights: Tensor
    take: Tensor
    leave: Tensor

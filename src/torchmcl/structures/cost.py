from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from torchmcl.structures.state import State

Cost = Callable[[Tensor, Tensor, State], Tensor]
C = TypeVar("C", bound=Cost)


def memberwise(cost: C) -> C:
    """Mark a cost that is the same for a member whether or not the others' logits are there."""
    cost.memberwise = True  # type: ignore[attr-defined]
    return cost

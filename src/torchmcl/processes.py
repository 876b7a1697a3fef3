"""Sums and maxima over all processes of a training; of one process, the value itself."""

from torch import Tensor, distributed


def many() -> bool:
    """Whether several processes train together.

    >>> many()
    False
    """
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def total(x: Tensor) -> Tensor:
    """The sum of `x` over processes, in place."""
    if many():
        distributed.all_reduce(x, op=distributed.ReduceOp.SUM)
    return x


def highest(x: Tensor) -> Tensor:
    """The element-wise maximum of `x` over processes, in place."""
    if many():
        distributed.all_reduce(x, op=distributed.ReduceOp.MAX)
    return x

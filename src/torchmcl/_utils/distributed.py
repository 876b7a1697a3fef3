"""Sums and maxima over all processes of a training; of one process, the value itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, distributed

from torchmcl.errors import LostProcessError, TorchmclError

_APART = ContextVar("apart", default=False)


def many() -> bool:
    """Whether several processes train together.

    >>> many()
    False
    """
    joined = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return joined and not _APART.get()


@contextmanager
def apart() -> Iterator[None]:
    """Train in this process only, though the caller's program may have several that know each other."""
    before = _APART.set(True)
    try:
        yield
    finally:
        _APART.reset(before)


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


def average(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over processes, in one message."""
    if not many():
        return
    whole = total(torch.cat([x.flatten() for x in tensors])) / distributed.get_world_size()
    for x, part in zip(tensors, whole.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))


def gathered(x: Tensor) -> Tensor:
    """The parts (N_i, …) of all processes, one after another, in every process."""
    if not many():
        return x
    sizes = [torch.zeros_like(torch.tensor([len(x)], device=x.device)) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, torch.tensor([len(x)], device=x.device))
    longest = max(int(size) for size in sizes)
    padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(parts, padded.contiguous())
    return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])


@contextmanager
def together(advice: str) -> Iterator[None]:
    """Run what processes do with each other.

    Raises:
        LostProcessError: if another process is gone, with `advice` on what to do.
    """
    try:
        yield
    except TorchmclError:  # one of them may be a RuntimeError that quotes gloo
        raise
    except RuntimeError as problem:
        text = " ".join(str(problem).split())
        if not many() or not (isinstance(problem, distributed.DistError) or "gloo" in text.lower()):
            raise
        count, me = distributed.get_world_size(), distributed.get_rank()
        raise LostProcessError(
            f"Process {me} of {count} lost contact with another process: {text[:120]}. {advice}"
        ) from problem

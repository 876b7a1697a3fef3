"""Collective operations over the processes in distributed training, which have no effect with a single process."""

import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor, distributed

from torchmcl.errors import LostProcessError, TorchmclError

_SINGLE = ContextVar("single", default=False)


def is_distributed() -> bool:
    """Return whether several processes train one ensemble."""
    joined = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    return joined and not _SINGLE.get()


@contextmanager
def single_process() -> Iterator[None]:
    """Train in this process only, even if the program has initialized a process group."""
    before = _SINGLE.set(True)
    try:
        yield
    finally:
        _SINGLE.reset(before)


@cache
def leave_group_at_exit() -> None:
    """End the process group, if there is one, when the program ends; otherwise, threads of gloo can abort the exit.

    To be called after a training without errors: with a lost process, ending the group can block.
    """
    atexit.register(lambda: distributed.destroy_process_group() if is_distributed() else None)


def all_sum(x: Tensor) -> Tensor:
    """Replace `x` by its sum over processes and return it."""
    if is_distributed():
        distributed.all_reduce(x, op=distributed.ReduceOp.SUM)
    return x


def all_max(x: Tensor) -> Tensor:
    """Replace `x` by its element-wise maximum over processes and return it."""
    if is_distributed():
        distributed.all_reduce(x, op=distributed.ReduceOp.MAX)
    return x


def all_mean(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its mean over processes, with a single all-reduce."""
    if not is_distributed():
        return
    mean = all_sum(torch.cat([x.flatten() for x in tensors])) / distributed.get_world_size()
    for x, part in zip(tensors, mean.split([x.numel() for x in tensors]), strict=True):
        x.copy_(part.view_as(x))


def all_gather(x: Tensor) -> Tensor:
    """Concatenate the parts (N_i, …) of all processes and return the result in every process."""
    if not is_distributed():
        return x
    length = torch.tensor([len(x)], device=x.device)
    sizes = [torch.zeros_like(length) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, length)
    longest = max(int(size) for size in sizes)
    padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    distributed.all_gather(parts, padded.contiguous())
    return torch.cat([part[: int(size)] for part, size in zip(parts, sizes, strict=True)])


@contextmanager
def report_lost_process(advice: str) -> Iterator[None]:
    """Raise LostProcessError, with `advice` in its message, if another process is lost during collective operations."""
    try:
        yield
    except TorchmclError:  # it may be a RuntimeError whose message contains "gloo"
        raise
    except RuntimeError as problem:
        text = " ".join(str(problem).split())
        if not is_distributed() or not (isinstance(problem, distributed.DistError) or "gloo" in text.lower()):
            raise
        process = f"Process {distributed.get_rank()} of {distributed.get_world_size()}"
        raise LostProcessError(f"{process} lost contact with another process: {text[:120]}. {advice}") from problem

"""Randomness that leaves the caller's alone: torch has one generator per device for all threads of a process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_TURN = RLock()


def seed_of(*numbers: int) -> int:
    """One seed of several numbers, each of which matters.

    >>> seed_of(0, 1, 2) == seed_of(0, 1, 2), seed_of(0, 1, 2) == seed_of(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_for(device: torch.device, seed: int) -> None:
    """Seed the generator that computations on a device draw from.

    On a CPU only its own: torch.manual_seed would note down, with a traceback, how to seed GPUs that are never used.
    """
    seed_one = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed_one(seed)


@contextmanager
def isolated() -> Iterator[None]:
    """Take turns with other threads, and put generators and the number of threads back afterwards, whatever happens.

    >>> before = torch.get_rng_state()
    >>> with isolated():
    ...     _ = torch.manual_seed(0)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _TURN:
        threads = torch.get_num_threads()
        # To ask a GPU that nobody uses yet would initialise it, after which no process can be forked.
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        try:
            with generators_kept():
                yield
        finally:
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            elif torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(torch.initial_seed())
            if mps is not None:
                torch.mps.set_rng_state(mps)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global generators of torch on the CPU, numpy and Python back afterwards.

    >>> before = random.getstate()
    >>> with generators_kept():
    ...     seed_generators(0)
    >>> random.getstate() == before
    True
    """
    of_torch, of_numpy, of_python = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch on the CPU, numpy and Python with a number below 2**64.

    >>> with generators_kept():
    ...     seed_generators(2**40)
    ...     first = torch.rand(1), np.random.rand(), random.random()
    ...     seed_generators(2**40)
    ...     first == (torch.rand(1), np.random.rand(), random.random())
    True
    """
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes notes for GPUs, which costs more than this
    np.random.seed([seed % 2**32, seed // 2**32])  # noqa: NPY002
    random.seed(seed)

"""Randomness that leaves the caller's alone: torch has one generator per device for all threads of a process."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_TURN = RLock()


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
        threads, cpu = torch.get_num_threads(), torch.get_rng_state()
        # To ask a GPU that nobody uses yet would initialise it, after which no process can be forked.
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        try:
            yield
        finally:
            torch.set_rng_state(cpu)
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            elif torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(torch.initial_seed())
            if mps is not None:
                torch.mps.set_rng_state(mps)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)

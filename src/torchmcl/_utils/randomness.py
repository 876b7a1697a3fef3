"""Seeds and generators. All threads of a process share the global generators, whose states are restored after use."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

_LOCK = RLock()


def seed_of(*numbers: int) -> int:
    """Derive one seed from several numbers.

    >>> seed_of(0, 1, 2) == seed_of(0, 1, 2), seed_of(0, 1, 2) == seed_of(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the generator of a device."""
    # On a CPU, torch.manual_seed would also store a traceback and a call that seeds GPUs once they are initialized.
    seed_generator = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed_generator(seed)


@contextmanager
def isolated() -> Iterator[None]:
    """Let one thread at a time run this context; restore all generators and torch's number of threads on exit.

    >>> before = torch.get_rng_state()
    >>> with isolated():
    ...     _ = torch.manual_seed(0)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with _LOCK:
        threads = torch.get_num_threads()
        # Reading the state of an unused GPU would initialize the GPU, after which no process can be forked.
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        try:
            with preserve_generators():
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
def preserve_generators() -> Iterator[None]:
    """Restore the global CPU generators of torch, NumPy and Python on exit.

    >>> before = random.getstate()
    >>> with preserve_generators():
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
    """Seed the global CPU generators of torch, NumPy and Python with a number below 2**64.

    >>> with preserve_generators():
    ...     seed_generators(2**40)
    ...     first, _ = (torch.rand(1), np.random.rand(), random.random()), seed_generators(2**40)
    ...     first == (torch.rand(1), np.random.rand(), random.random())
    True
    """
    torch.default_generator.manual_seed(seed)  # faster than torch.manual_seed, see `seed_device`
    np.random.seed([seed % 2**32, seed // 2**32])  # noqa: NPY002
    random.seed(seed)

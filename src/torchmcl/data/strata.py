"""Choosing some of the examples, of each label in proportion."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from torchmcl.errors import UsageError


class Purpose(IntEnum):
    """What is chosen: one seed chooses independently for each."""

    TEST = 0
    VALIDATION = 1
    LIMIT = 2


def hold_out(label: Tensor, fraction: float, *, seed: int, purpose: Purpose) -> tuple[Tensor, Tensor]:
    """Split places into those kept and a fraction held out of each label, (N,) -> ascending (K,), (N - K,).

    Of n examples of a label, n * fraction are held out, rounded; at least 1 where n >= 2, never all.

    >>> kept, held = hold_out(torch.tensor([0, 0, 0, 0, 0, 1]), 0.2, seed=0, purpose=Purpose.TEST)
    >>> len(kept), len(held)
    (5, 1)
    """
    if not 0 < fraction < 1:
        raise UsageError(f"Expected a fraction to hold out between 0 and 1, got {fraction}.")
    places, rank, size = _shuffled_strata(label, seed, purpose)
    held = rank < torch.minimum((size * fraction + 0.5).floor().clamp(min=1), size - 1)
    if not held.any():
        raise UsageError(f"Expected 2 examples of some label to hold one out, got {len(label)} of different ones.")
    return places[~held].sort().values, places[held].sort().values


def at_most(label: Tensor, count: int, *, seed: int) -> Tensor:
    """Places of `count` examples, of each label in proportion, at least one if there is room, (N,) -> ascending (K,).

    Seats go to labels by Sainte-Laguë's method, the first to each label: a smaller count chooses a part of what a
    larger one does.

    >>> label = torch.tensor([0] * 8 + [1] * 4)
    >>> label[at_most(label, 6, seed=0)]
    tensor([0, 0, 0, 0, 1, 1])
    """
    if count < 1:
        raise UsageError(f"Expected a limit of 1 example or more, got {count}.")
    places, rank, size = _shuffled_strata(label, seed, Purpose.LIMIT)
    priority = torch.where(rank == 0, torch.inf, size / (rank + 0.5))
    return places[priority.argsort(descending=True, stable=True)[:count]].sort().values


def balanced(members: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """An order of as many examples as there are, (N,), that has every class equally often.

    `members` holds the places of the examples of each class. The counts of two classes differ by at most one, and so do
    those of two examples of a class; which ones come more often is drawn anew for each order.

    >>> few = [torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5])]
    >>> (balanced(few, torch.Generator().manual_seed(0)) == 5).sum()
    tensor(3)
    """
    count = sum(map(len, members))
    each, more = divmod(count, len(members))
    extra = (torch.randperm(len(members), generator=generator) < more).tolist()
    chosen = []
    for own, one_more in zip(members, extra, strict=True):
        shuffled = own[torch.randperm(len(own), generator=generator)]
        whole, rest = divmod(each + one_more, len(own))
        chosen += [shuffled] * whole + [shuffled[:rest]]
    return torch.cat(chosen)[torch.randperm(count, generator=generator)]


def _shuffled_strata(label: Tensor, seed: int, purpose: Purpose) -> tuple[Tensor, Tensor, Tensor]:
    """All places in random order, label by label; each one's rank in its label and the label's size, (N,) each."""
    if seed < 0:
        raise UsageError(f"Expected a seed from 0 on, got {seed}.")
    # Raw bits of PCG64 are the same in every release of numpy, which promises that of no higher function: a test set
    # must not change with an upgrade.
    bits = np.random.PCG64(np.random.SeedSequence([seed, purpose])).random_raw(len(label))
    order = torch.from_numpy(bits.argsort(kind="stable"))
    places = order[label[order].argsort(stable=True)]
    sizes = torch.bincount(label)
    size = sizes[label[places]].double()
    rank = torch.arange(len(label)) - (sizes.cumsum(0) - sizes)[label[places]]
    return places, rank, size

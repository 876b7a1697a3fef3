"""Stratified selection: split or limit examples so that each label keeps its proportion."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from torchmcl.errors import UsageError


class Purpose(IntEnum):
    """The purpose of a selection; with the same seed, selections for different purposes are independent."""

    TEST = 0
    VALIDATION = 1
    LIMIT = 2
    TEST_OF_NUMBERS = 3  # for numbers to predict; see `train_test_split`


def hold_out(label: Tensor, fraction: float, *, seed: int, purpose: Purpose) -> tuple[Tensor, Tensor]:
    """Hold out a fraction of each label's examples; return kept and held-out indices, (N,) -> ascending (K,), (N - K,).

    Of the n examples of a label, n * fraction (rounded) are held out, but at least 1 if n >= 2, and never all n.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"Expected a fraction between 0 and 1 to hold out, got {fraction}.")
    index, rank, size = _shuffled_strata(label, seed, purpose)
    chosen = rank < torch.minimum((size * fraction + 0.5).floor().clamp(min=1), size - 1)
    if not chosen.any():
        reason = "each has a different label" if len(label) > 1 else "at least two are needed"
        raise UsageError(f"Cannot hold out any of {len(label)} examples: {reason}. Add examples.")
    return index[~chosen].sort().values, index[chosen].sort().values


def train_test_split(
    label: Tensor, *, seed: int, fraction: float = 0.2, purpose: Purpose = Purpose.TEST
) -> dict[str, Tensor]:
    """Hold out a test set, and return the indices of the examples in the parts "train" and "test".

    With the purpose TEST, the random bits are those of `numpy.random.default_rng(seed)`. Inputs that the user has drawn
    from this generator would be split by their values. Test sets of classes keep these bits, because results that are
    stored depend on them.
    """
    return dict(zip(("train", "test"), hold_out(label, fraction, seed=seed, purpose=purpose), strict=True))


def stratified_subset(label: Tensor, count: int, *, seed: int) -> Tensor:
    """Choose `count` examples, the same fraction of each label but at least one if possible, (N,) -> ascending (K,)."""
    if count < 1:
        raise UsageError(f"Expected limit >= 1, got {count}.")
    index, rank, size = _shuffled_strata(label, seed, Purpose.LIMIT)
    # Each label gets one example, and the Sainte-Laguë method distributes the others. As a result, the examples chosen
    # for a smaller count are a subset of those chosen for a larger count.
    priority = torch.where(rank == 0, torch.inf, size / (rank + 0.5))
    return index[priority.argsort(descending=True, stable=True)[:count]].sort().values


def balanced_order(by_class: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Draw a random order (N,) of N examples, with repetitions, in which all classes are equally frequent.

    `by_class` contains the indices of each class. The counts of any two classes differ by at most one, and so do the
    counts of any two examples of a class. Each call chooses the classes and examples with the higher count at random.
    """
    count = sum(map(len, by_class))
    per_class, remainder = divmod(count, len(by_class))
    extra = (torch.randperm(len(by_class), generator=generator) < remainder).tolist()
    chosen = []
    for index, one_more in zip(by_class, extra, strict=True):
        shuffled = index[torch.randperm(len(index), generator=generator)]
        repeats, rest = divmod(per_class + one_more, len(index))
        chosen += [shuffled] * repeats + [shuffled[:rest]]
    return torch.cat(chosen)[torch.randperm(count, generator=generator)]


def _shuffled_strata(label: Tensor, seed: int, purpose: Purpose) -> tuple[Tensor, Tensor, Tensor]:
    """Return indices sorted by label and shuffled within labels, ranks within labels, and label sizes, (N,) each."""
    if seed < 0:
        raise UsageError(f"Expected seed >= 0, got {seed}.")
    # The raw bits of PCG64 are the same in every NumPy release, so an upgrade does not change a test set. The output
    # of higher-level functions may change.
    bits = np.random.PCG64(np.random.SeedSequence([seed, purpose])).random_raw(len(label))
    order = torch.from_numpy(bits.argsort(kind="stable"))
    index = order[label[order].argsort(stable=True)]
    sizes = torch.bincount(label)
    size = sizes[label[index]].double()
    rank = torch.arange(len(label)) - (sizes.cumsum(0) - sizes)[label[index]]
    return index, rank, size

from typing import Any, final

import torch
from torch import Tensor

from torchmcl.metrics.shapes import check
from torchmcl.metrics.stateful import Average, MemberAverage
from torchmcl.structures.output import to_float32

_MEMBERS = "probabilities (M, B, C, …) and target (B, …)"
_COMBINED = "probabilities (B, C, …) and target (B, …)"


def members_wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    """Whether each member is wrong, example by example: (M, B, C, …), (B, …) -> bool (M, B, …).

    wrong_m = [argmax_c p_m(c) != y], the lower class where two are equal. Logits do as well.

    >>> members_wrong(torch.tensor([[[.9, .1], [.2, .8]], [[.4, .6], [.3, .7]]]), torch.tensor([0, 0]))
    tensor([[False,  True],
            [ True,  True]])
    """
    check(_MEMBERS, probabilities, target)
    return _wrong(probabilities, target)


def oracle_wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    """Whether every member is wrong, example by example: (M, B, C, …), (B, …) -> bool (B, …).

    >>> oracle_wrong(torch.tensor([[[.9, .1], [.2, .8]], [[.4, .6], [.3, .7]]]), torch.tensor([0, 0]))
    tensor([False,  True])
    """
    return members_wrong(probabilities, target).all(0)


def top1_wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    """Whether the combined answer is wrong, example by example: (B, C, …), (B, …) -> bool (B, …).

    >>> top1_wrong(torch.tensor([[.9, .1], [.2, .8]]), torch.tensor([0, 0]))
    tensor([False,  True])
    """
    check(_COMBINED, probabilities, target)
    return _wrong(probabilities, target)


def oracle_error(probabilities: Tensor, target: Tensor) -> Tensor:
    """Oracle error: the part of the examples that every member has wrong, (M, B, C, …), (B, …) -> ().

    mean_B min_m [argmax_c p_m(c) != y]. Over the C real classes this is the published number. With the auxiliary
    column left in, (M, B, C + 1), it is the strict variant: an auxiliary class on top is no answer, so it is wrong.

    >>> strict = torch.tensor([[[.3, .1, .6], [.1, .9, .0]]])  # one member; the auxiliary class is the last
    >>> target = torch.tensor([0, 1])
    >>> oracle_error(strict[..., :-1], target), oracle_error(strict, target)
    (tensor(0.), tensor(0.5000))
    """
    return oracle_wrong(probabilities, target).float().mean()


def top1_error(probabilities: Tensor, target: Tensor) -> Tensor:
    """Top-1 error: the part of the examples that the combined answer has wrong, (B, C, …), (B, …) -> ().

    mean_B [argmax_c p(c) != y].

    >>> top1_error(torch.tensor([[.9, .1], [.2, .8]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    return top1_wrong(probabilities, target).float().mean()


def member_errors(probabilities: Tensor, target: Tensor) -> Tensor:
    """Each member's own error, (M, B, C, …), (B, …) -> (M,).

    error_m = mean_B [argmax_c p_m(c) != y].

    >>> member_errors(torch.tensor([[[.9, .1], [.2, .8]], [[.4, .6], [.3, .7]]]), torch.tensor([0, 0]))
    tensor([0.5000, 1.0000])
    """
    return members_wrong(probabilities, target).flatten(1).float().mean(1)


def harmonic_mean(oracle: Tensor, top1: Tensor) -> Tensor:
    """Harmonic mean of two errors, () and () -> (); what the paper chooses K by.

    2 o t / (o + t), and 0 where either error is 0.

    >>> harmonic_mean(torch.tensor(.1), torch.tensor(.3)), harmonic_mean(torch.tensor(0.), torch.tensor(0.))
    (tensor(0.1500), tensor(0.))
    """
    oracle, top1 = to_float32(oracle), to_float32(top1)
    return 2 * oracle * top1 / (oracle + top1).clamp_min(torch.finfo(torch.float32).tiny)


def _wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    # Counted from the end, the class axis is where the target's batch axis is, members or not, pixels or not.
    return probabilities.argmax(-target.ndim) != target


@final
class OracleError(Average):
    """`oracle_error` over all batches; keep the auxiliary column for the strict variant.

    >>> metric = OracleError()
    >>> metric.update(torch.tensor([[[.9, .1]], [[.4, .6]]]), torch.tensor([1]))
    >>> metric.update(torch.tensor([[[.9, .1]], [[.6, .4]]]), torch.tensor([1]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in probabilities (M, B, C, …), target (B, …)."""
        self._average(oracle_wrong(probabilities, target))


@final
class Top1Error(Average):
    """`top1_error` over all batches.

    >>> metric = Top1Error()
    >>> metric.update(torch.tensor([[.9, .1], [.2, .8]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000)
    """

    higher_is_better = False

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in combined probabilities (B, C, …), target (B, …)."""
        self._average(top1_wrong(probabilities, target))


@final
class MemberErrors(MemberAverage):
    """`member_errors` over all batches, (M,).

    >>> metric = MemberErrors(members=2)
    >>> metric.update(torch.tensor([[[.9, .1]], [[.4, .6]]]), torch.tensor([1]))
    >>> metric.compute()
    tensor([1., 0.])
    """

    higher_is_better = False

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in probabilities (M, B, C, …), target (B, …)."""
        self._average(members_wrong(probabilities, target))


@final
class HarmonicMean(Average):
    """`harmonic_mean` of the oracle error and the top-1 error over all batches.

    >>> members = torch.tensor([[[.9, .1], [.9, .1]], [[.4, .6], [.8, .2]]])
    >>> metric = HarmonicMean()
    >>> metric.update(members, members.mean(0), torch.tensor([1, 1]))
    >>> metric.compute()  # of 1/2 and 1
    tensor(0.6667)
    """

    higher_is_better = False

    def __init__(self, **options: Any) -> None:
        super().__init__(2, **options)

    def update(self, probabilities: Tensor, combined: Tensor, target: Tensor) -> None:
        """Take in the members' probabilities (M, B, C), the combined ones (B, C), target (B,)."""
        self._average(torch.stack([oracle_wrong(probabilities, target), top1_wrong(combined, target)]))

    def compute(self) -> Tensor:
        """Harmonic mean of the two errors over all examples so far."""
        oracle, top1 = super().compute()
        return harmonic_mean(oracle, top1)

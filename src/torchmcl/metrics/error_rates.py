from typing import Any, final

import torch
from torch import Tensor

from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import ErrorMetric, MeanMetric
from torchmcl.structures.output import to_float32


def members_wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    """Return whether each member is wrong on each example: argmax_c p_m(c) != y.

    Args:
        probabilities: the members' probabilities or logits, (M, B, C, …); in a tie, the lowest class is the prediction
        target: the correct classes, (B, …)

    Returns:
        Booleans, (M, B, …).

    >>> members_wrong(torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.4, 0.6], [0.3, 0.7]]]), torch.tensor([0, 0]))
    tensor([[False,  True],
            [ True,  True]])
    """
    check_shapes("probabilities (M, B, C, …) and target (B, …)", probabilities, target)
    return _wrong(probabilities, target)


def oracle_wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    """Return whether all members are wrong on each example, (M, B, C, …), (B, …) -> bool (B, …); see `members_wrong`.

    >>> oracle_wrong(torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.4, 0.6], [0.3, 0.7]]]), torch.tensor([0, 0]))
    tensor([False,  True])
    """
    return members_wrong(probabilities, target).all(0)


def top1_wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    """Return whether the combined prediction argmax_c p(c) is wrong on each example: (B, C, …), (B, …) -> bool (B, …).

    >>> top1_wrong(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    tensor([False,  True])
    """
    check_shapes("probabilities (B, C, …) and target (B, …)", probabilities, target)
    return _wrong(probabilities, target)


def oracle_error(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the fraction of examples on which all members are wrong: mean_B min_m [argmax_c p_m(c) != y].

    Args:
        probabilities: the members' probabilities or logits, (M, B, C, …). C outputs give the published metric.
            In the strict variant, the last of C + 1 outputs is the auxiliary class, which is always a wrong prediction
        target: the correct classes, (B, …)

    Returns:
        A scalar between 0 and 1.

    >>> strict = torch.tensor([[[0.3, 0.1, 0.6], [0.1, 0.9, 0.0]]])  # one member; the auxiliary class is the last
    >>> target = torch.tensor([0, 1])
    >>> oracle_error(strict[..., :-1], target), oracle_error(strict, target)
    (tensor(0.), tensor(0.5000))
    """
    return oracle_wrong(probabilities, target).float().mean()


def top1_error(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the fraction of examples on which the combined prediction is wrong: mean_B [argmax_c p(c) != y].

    Args:
        probabilities: the combined probabilities, (B, C, …)
        target: the correct classes, (B, …)

    Returns:
        A scalar between 0 and 1.

    >>> top1_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    tensor(0.5000)
    """
    return top1_wrong(probabilities, target).float().mean()


def member_errors(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the error of each member: mean_B [argmax_c p_m(c) != y].

    Args:
        probabilities: the members' probabilities or logits, (M, B, C, …)
        target: the correct classes, (B, …)

    Returns:
        Errors between 0 and 1, (M,).

    >>> member_errors(torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.4, 0.6], [0.3, 0.7]]]), torch.tensor([0, 0]))
    tensor([0.5000, 1.0000])
    """
    return members_wrong(probabilities, target).flatten(1).float().mean(1)


def harmonic_mean(oracle: Tensor, top1: Tensor) -> Tensor:
    """Compute the harmonic mean 2 o t / (o + t) of two errors, or 0 if one is 0. Kim et al. 2022 use it to choose K.

    >>> harmonic_mean(torch.tensor(0.1), torch.tensor(0.3)), harmonic_mean(torch.tensor(0.0), torch.tensor(0.0))
    (tensor(0.1500), tensor(0.))
    """
    oracle, top1 = to_float32(oracle), to_float32(top1)
    return 2 * oracle * top1 / (oracle + top1).clamp_min(torch.finfo(torch.float32).tiny)


def _wrong(probabilities: Tensor, target: Tensor) -> Tensor:
    # Counted from the last axis, the class axis of the probabilities has the same number as the target's batch axis.
    return probabilities.argmax(-target.ndim) != target


@final
class OracleError(ErrorMetric):
    """Compute `oracle_error` over all batches; outputs that include the auxiliary class give the strict variant.

    >>> metric = OracleError()
    >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]]]), torch.tensor([1]))
    >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.6, 0.4]]]), torch.tensor([1]))
    >>> metric.compute()
    tensor(0.5000)
    """

    _values = staticmethod(oracle_wrong)


@final
class Top1Error(ErrorMetric):
    """Compute `top1_error` over all batches.

    >>> metric = Top1Error()
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000)
    """

    _values = staticmethod(top1_wrong)


@final
class MemberErrors(ErrorMetric):
    """Compute `member_errors` for M `members` over all batches.

    >>> metric = MemberErrors(members=2)
    >>> metric.update(torch.tensor([[[0.9, 0.1]], [[0.4, 0.6]]]), torch.tensor([1]))
    >>> metric.compute()
    tensor([1., 0.])
    """

    _values = staticmethod(members_wrong)

    def __init__(self, members: int, **options: Any) -> None:
        super().__init__(members, **options)


@final
class HarmonicMean(MeanMetric):
    """Compute the `harmonic_mean` of the oracle error and the top-1 error over all batches.

    >>> members = torch.tensor([[[0.9, 0.1], [0.9, 0.1]], [[0.4, 0.6], [0.8, 0.2]]])
    >>> metric = HarmonicMean()
    >>> metric.update(members, members.mean(0), torch.tensor([1, 1]))
    >>> metric.compute()  # of 1/2 and 1
    tensor(0.6667)
    """

    higher_is_better = False

    def __init__(self, **options: Any) -> None:
        super().__init__(2, **options)

    def update(self, probabilities: Tensor, combined: Tensor, target: Tensor) -> None:
        """Add a batch: the members' probabilities (M, B, C), the combined ones (B, C) and the target (B,)."""
        self._add_values(torch.stack([oracle_wrong(probabilities, target), top1_wrong(combined, target)]))

    def compute(self) -> Tensor:
        """Return the harmonic mean of both errors over all examples since the last reset."""
        return harmonic_mean(*super().compute())

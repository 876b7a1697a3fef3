from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl.metrics.shapes import check
from torchmcl.metrics.stateful import Average
from torchmcl.structures.output import to_float32

BINS = 15  # what the field reports


def nll(probabilities: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood, (B, C), (B,) -> ().

    mean_B -log p(y). A p(y) of 0 counts as the smallest normal number of its type (1.2e-38 in float32, so 87.3), to
    stay finite: one certain mistake of a saturated softmax would otherwise make every ensemble infinitely bad.

    >>> nll(torch.tensor([[.5, .5], [0., 1.]]), torch.tensor([0, 1])), nll(torch.tensor([[0., 1.]]), torch.tensor([0]))
    (tensor(0.3466), tensor(87.3365))
    """
    return _nlls(probabilities, target).mean()


def brier(probabilities: Tensor, target: Tensor) -> Tensor:
    """Brier score, (B, C), (B,) -> (), between 0 and 2.

    mean_B sum_c (p(c) - [c = y])^2.

    >>> brier(torch.tensor([[.5, .5], [0., 1.]]), torch.tensor([0, 0]))
    tensor(1.2500)
    """
    return _briers(probabilities, target).mean()


def ece(probabilities: Tensor, target: Tensor) -> Tensor:
    """Expected calibration error in 15 bins of equal width, (B, C), (B,) -> ().

    sum_b |bin b| / B * |accuracy(bin b) - confidence(bin b)|, confidence = max_c p(c), bin b = (b/15, (b+1)/15]
    (Guo et al. 2017, eq. 3). The sizes cancel: 1/B sum_b |sum_{i in bin b} (correct_i - confidence_i)|.

    >>> ece(torch.tensor([[1., 0.], [.95, .05]]), torch.tensor([1, 0]))  # one bin: right 1/2, confident .975
    tensor(0.4750)
    """
    return _gaps(probabilities, target).mean(1).abs().sum()


def reliability(probabilities: Tensor, target: Tensor) -> Tensor:
    """What a reliability diagram is made of, (B, C, …), (B, …) -> (3, 15): sums over the examples or pixels of a bin.

    Their number, their confidences, and how many are right; bins as in `ece`, which is
    sum_b |right_b - confidence_b| / sum_b number_b.

    >>> reliability(torch.tensor([[1., 0.], [.95, .05]]), torch.tensor([1, 0]))[:, -1]
    tensor([2.0000, 1.9500, 1.0000], dtype=torch.float64)
    """
    check("probabilities (B, C, …) and target (B, …)", probabilities, target)
    confidence, answer = (part.flatten() for part in to_float32(probabilities).max(1))
    right = answer == target.flatten()
    told = torch.stack([torch.ones_like(confidence), confidence, right.to(confidence.dtype)]).double()
    return told.new_zeros(3, BINS).index_add(1, _bins(confidence), told)


def _nlls(probabilities: Tensor, target: Tensor) -> Tensor:
    """(B, C), (B,) -> (B,)."""
    check("probabilities (B, C) and target (B,)", probabilities, target)
    truth = to_float32(probabilities).gather(1, target.long()[:, None])[:, 0]
    return -truth.clamp_min(torch.finfo(truth.dtype).tiny).log()


def _briers(probabilities: Tensor, target: Tensor) -> Tensor:
    """(B, C), (B,) -> (B,)."""
    check("probabilities (B, C) and target (B,)", probabilities, target)
    return (to_float32(probabilities) - F.one_hot(target.long(), probabilities.shape[1])).square().sum(1)


def _gaps(probabilities: Tensor, target: Tensor) -> Tensor:
    """Each example's correct - confidence in the row of its bin, 0 in the others: (B, C), (B,) -> (BINS, B).

    Not torchmetrics' calibration error: it gives a confidence of exactly 1, which a saturated softmax has often, a
    sixteenth bin of its own, and takes the softmax again of everything if one mean of members rounds to above 1.
    """
    check("probabilities (B, C) and target (B,)", probabilities, target)
    confidence, answer = to_float32(probabilities).max(1)
    return F.one_hot(_bins(confidence), BINS).T * ((answer == target).to(confidence.dtype) - confidence)


def _bins(confidence: Tensor) -> Tensor:
    """The bin that each is in, (B,) -> (B,)."""
    edges = torch.linspace(0, 1, BINS + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    return torch.bucketize(confidence, edges)


@final
class NLL(Average):
    """`nll` over all batches.

    >>> metric = NLL()
    >>> metric.update(torch.tensor([[.5, .5], [0., 1.]]), torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.3466)
    """

    higher_is_better = False

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in combined probabilities (B, C), target (B,)."""
        self._average(_nlls(probabilities, target))


@final
class Brier(Average):
    """`brier` over all batches.

    >>> metric = Brier()
    >>> metric.update(torch.tensor([[.5, .5], [0., 1.]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(1.2500)
    """

    higher_is_better = False

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in combined probabilities (B, C), target (B,)."""
        self._average(_briers(probabilities, target))


@final
class ECE(Average):
    """`ece` over all batches; the bins are sums, so no example is kept.

    >>> metric = ECE()
    >>> metric.update(torch.tensor([[1., 0.]]), torch.tensor([1]))
    >>> metric.update(torch.tensor([[.95, .05]]), torch.tensor([0]))
    >>> metric.compute()
    tensor(0.4750)
    """

    higher_is_better = False

    def __init__(self, **options: Any) -> None:
        super().__init__(BINS, **options)

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Take in combined probabilities (B, C), target (B,)."""
        self._average(_gaps(probabilities, target))

    def compute(self) -> Tensor:
        """Calibration error over all examples so far."""
        return super().compute().abs().sum()

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import ErrorMetric
from torchmcl.structures.output import to_float32

BINS = 15  # the usual number of bins


def nll(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the negative log-likelihood: mean_B -log p(y).

    A p(y) of 0 is replaced by the smallest normal number of its type (1.2e-38 in float32, a loss of 87.3), because
    otherwise a single error of a saturated softmax would make the result infinite.

    Args:
        probabilities: the combined probabilities, (B, C)
        target: the correct classes, (B,)

    Returns:
        A non-negative scalar.

    >>> nll(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.3466)
    >>> nll(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    tensor(87.3365)
    """
    return _example_nll(probabilities, target).mean()


def brier(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the Brier score: mean_B sum_c (p(c) - [c = y])^2.

    Args:
        probabilities: the combined probabilities, (B, C)
        target: the correct classes, (B,)

    Returns:
        A scalar between 0 and 2.

    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(1.2500)
    """
    return _example_brier(probabilities, target).mean()


def ece(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the expected calibration error with 15 bins of equal width (Guo et al. 2017, eq. 3).

    sum_b |bin b| / B * |accuracy(bin b) - confidence(bin b)|, confidence = max_c p(c), bin b = (b/15, (b+1)/15].
    The bin sizes cancel, which gives 1/B sum_b |sum_{i in bin b} (correct_i - confidence_i)|.

    Args:
        probabilities: the combined probabilities, (B, C)
        target: the correct classes, (B,)

    Returns:
        A scalar between 0 and 1.

    >>> ece(torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0]))  # one bin: accuracy 1/2, confidence 0.975
    tensor(0.4750)
    """
    return _binned_gaps(probabilities, target).mean(1).abs().sum()


def reliability(probabilities: Tensor, target: Tensor) -> Tensor:
    """Compute the counts and the sum of confidences in each bin of a reliability diagram, with the bins of `ece`.

    The calibration error is sum_b |correct_b - confidence_b| / sum_b number_b.

    Args:
        probabilities: the combined probabilities, (B, C, …)
        target: the correct classes, (B, …)

    Returns:
        The number of examples or pixels, the sum of their confidences, and the number of correct predictions, (3, 15).

    >>> reliability(torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0]))[:, -1]
    tensor([2.0000, 1.9500, 1.0000], dtype=torch.float64)
    """
    check_shapes("probabilities (B, C, …) and target (B, …)", probabilities, target)
    confidence, prediction = (part.flatten() for part in to_float32(probabilities).max(1))
    correct = (prediction == target.flatten()).to(confidence.dtype)
    values = torch.stack([torch.ones_like(confidence), confidence, correct]).double()
    return values.new_zeros(3, BINS).index_add(1, _bins(confidence), values)


def _example_nll(probabilities: Tensor, target: Tensor) -> Tensor:
    check_shapes("probabilities (B, C) and target (B,)", probabilities, target)
    likelihood = to_float32(probabilities).gather(1, target.long()[:, None])[:, 0]
    return -likelihood.clamp_min(torch.finfo(likelihood.dtype).tiny).log()


def _example_brier(probabilities: Tensor, target: Tensor) -> Tensor:
    check_shapes("probabilities (B, C) and target (B,)", probabilities, target)
    return (to_float32(probabilities) - F.one_hot(target.long(), probabilities.shape[1])).square().sum(1)


def _binned_gaps(probabilities: Tensor, target: Tensor) -> Tensor:
    """Return `correct - confidence` in the row of each example's bin and 0 in other rows, (B, C), (B,) -> (BINS, B)."""
    # torchmetrics is not used, because it puts a confidence of exactly 1, which is common for a saturated softmax, in a
    # sixteenth bin, and applies a softmax to all probabilities if a mean over members is rounded to a value above 1.
    check_shapes("probabilities (B, C) and target (B,)", probabilities, target)
    confidence, prediction = to_float32(probabilities).max(1)
    return F.one_hot(_bins(confidence), BINS).T * ((prediction == target).to(confidence.dtype) - confidence)


def _bins(confidence: Tensor) -> Tensor:
    """Return the index of the bin that contains each confidence, (B,) -> (B,)."""
    edges = torch.linspace(0, 1, BINS + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    return torch.bucketize(confidence, edges)


@final
class NLL(ErrorMetric):
    """Compute `nll` over all batches.

    >>> metric = NLL()
    >>> metric.update(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.3466)
    """

    _values = staticmethod(_example_nll)


@final
class Brier(ErrorMetric):
    """Compute `brier` over all batches.

    >>> metric = Brier()
    >>> metric.update(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(1.2500)
    """

    _values = staticmethod(_example_brier)


@final
class ECE(ErrorMetric):
    """Compute `ece` over all batches. Only the sums in each bin are stored.

    >>> metric = ECE()
    >>> metric.update(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
    >>> metric.update(torch.tensor([[0.95, 0.05]]), torch.tensor([0]))
    >>> metric.compute()
    tensor(0.4750)
    """

    _values = staticmethod(_binned_gaps)

    def __init__(self, **options: Any) -> None:
        super().__init__(BINS, **options)

    def compute(self) -> Tensor:
        """Return the calibration error over all examples since the last reset."""
        return super().compute().abs().sum()

from typing import final

import torch
from torch import Tensor

from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import CurveMetric
from torchmcl.structures.output import to_float32

_INPUTS = "confidence (B,) and wrong (B,)"


def risk_coverage(confidence: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the risk-coverage curve: the error on the i most confident examples, for each i.

    coverage_i = i / B, risk_i = 1/i * (wrong predictions among the i most confident examples). If several examples have
    the same confidence, the risk is averaged over all orders of these examples.

    Args:
        confidence: the confidence of each prediction, (B,)
        wrong: whether each prediction is wrong, (B,)

    Returns:
        The coverage and the risk, (B,) each.

    >>> risk_coverage(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([False, False, True]))
    (tensor([0.3333, 0.6667, 1.0000]), tensor([0.0000, 0.2500, 0.3333]))
    """
    check_shapes(_INPUTS, confidence, wrong)
    _, tie, size = torch.unique(confidence, return_inverse=True, return_counts=True)
    wrong = to_float32(wrong)
    mean = wrong.new_zeros(len(size)).index_add(0, tie, wrong) / size
    expected = mean[tie.sort(descending=True).values]  # `unique` numbers ties by confidence
    accepted = torch.arange(1, len(tie) + 1, device=tie.device)
    return accepted / len(tie), expected.cumsum(0) / accepted


def aurc(confidence: Tensor, wrong: Tensor) -> Tensor:
    """Compute the area under the risk-coverage curve: 1/B sum_i risk_i (see `risk_coverage`).

    Args:
        confidence: the confidence of each prediction, (B,)
        wrong: whether each prediction is wrong, (B,)

    Returns:
        A scalar between 0 and 1.

    >>> aurc(torch.tensor([0.9, 0.5, 0.4]), torch.tensor([False, True, False]))  # risks 0, 1/2, 1/3
    tensor(0.2778)
    """
    return risk_coverage(confidence, wrong)[1].mean()


@final
class AURC(CurveMetric):
    """Compute `aurc` over all batches.

    >>> metric = AURC()
    >>> metric.update(torch.tensor([0.9, 0.4]), torch.tensor([False, False]))
    >>> metric.update(torch.tensor([0.5]), torch.tensor([True]))
    >>> metric.compute()
    tensor(0.2778)
    """

    higher_is_better = False
    states = ("confidence", "wrong")
    function = staticmethod(aurc)

    def update(self, confidence: Tensor, wrong: Tensor) -> None:
        """Add a batch: the confidence of each prediction (B,) and whether it is wrong (B,)."""
        check_shapes(_INPUTS, confidence, wrong)
        self._append("confidence", confidence)
        self._append("wrong", wrong)

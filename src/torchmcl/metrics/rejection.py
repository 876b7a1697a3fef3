from typing import final

import torch
from torch import Tensor

from torchmcl.metrics.shapes import check
from torchmcl.metrics.stateful import Whole
from torchmcl.structures.output import to_float32

_INPUTS = "confidence (B,) and wrong (B,)"


def risk_coverage(confidence: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """Error among the most confident examples, for each number of them: (B,), (B,) -> coverage (B,), risk (B,).

    coverage_i = i / B, risk_i = 1/i sum of wrong over the i most confident. Examples of one confidence have no order
    among them, so the risk is the expected one over all their orders: each counts as the mean of its tie.

    >>> risk_coverage(torch.tensor([.9, .5, .5]), torch.tensor([False, False, True]))
    (tensor([0.3333, 0.6667, 1.0000]), tensor([0.0000, 0.2500, 0.3333]))
    """
    check(_INPUTS, confidence, wrong)
    _, tie, size = torch.unique(confidence, return_inverse=True, return_counts=True)
    wrong = to_float32(wrong)
    mean = wrong.new_zeros(len(size)).index_add(0, tie, wrong) / size
    expected = mean[tie.sort(descending=True).values]  # a tie's number is its rank by confidence
    accepted = torch.arange(1, len(tie) + 1, device=tie.device)
    return accepted / len(tie), expected.cumsum(0) / accepted


def aurc(confidence: Tensor, wrong: Tensor) -> Tensor:
    """Area under the risk-coverage curve: the mean risk over all coverages, (B,), (B,) -> ().

    1/B sum_i risk_i.

    >>> aurc(torch.tensor([.9, .5, .4]), torch.tensor([False, True, False]))  # risks 0, 1/2, 1/3
    tensor(0.2778)
    """
    return risk_coverage(confidence, wrong)[1].mean()


@final
class AURC(Whole):
    """`aurc` of all batches.

    >>> metric = AURC()
    >>> metric.update(torch.tensor([.9, .4]), torch.tensor([False, False]))
    >>> metric.update(torch.tensor([.5]), torch.tensor([True]))
    >>> metric.compute()
    tensor(0.2778)
    """

    higher_is_better = False
    names = ("confidence", "wrong")
    function = staticmethod(aurc)

    def update(self, confidence: Tensor, wrong: Tensor) -> None:
        """Take in confidence (B,), whether the answer is wrong (B,)."""
        check(_INPUTS, confidence, wrong)
        self._keep("confidence", confidence)
        self._keep("wrong", wrong)

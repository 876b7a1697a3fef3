"""Calibration of each member of an ensemble with an auxiliary class: a temperature and a bias of the auxiliary class.

Vector scaling (Guo et al. 2017) reduced to the two numbers that claims depend on: how sure a member is, and how
often it says "not mine".
"""

from collections.abc import Callable
from math import log
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from torchmcl.inference.rejection import MAX_TEMPERATURE, MIN_TEMPERATURE, apply_temperature, fit_temperature
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.rejection import with_members

MAX_BIAS = 10.0
MIN_GAIN = 2.0  # in log-likelihood; a smaller one, a likelihood ratio below 7, can be chance
MAX_ROWS = 20_000  # the maximum number of examples or pixels that determine the values

Combine = Callable[[EnsembleOutput], Tensor]


class MemberCalibration(NamedTuple):
    """The temperature and the auxiliary bias of each member; () if the members are left as they are."""

    temperatures: tuple[float, ...] = ()
    bias: tuple[float, ...] = ()


def fit_members(combine: Combine, logits: Tensor, target: Tensor) -> MemberCalibration:
    """Return the temperatures and biases that are most likely, given the combined probabilities of the labels.

    The logarithms of the temperatures and the biases have a standard normal prior, without which few validation
    examples would give extreme values. The biases sum to 0. The combined probabilities depend on their differences, and
    hardly on a bias that all members share, which would only make all claims weaker or stronger.

    Args:
        combine: combiner of the method, from outputs (M, B, C + 1) to probabilities (B, C)
        logits: members' logits (M, B, C + 1), the auxiliary class last
        target: labels (B,)

    >>> from torchmcl.tasks.combiners import drop_auxiliary
    >>> logits = torch.tensor([[[2.0, 0.0, 0.0]] * 4, [[0.0, 2.0, 0.0]] * 4])  # the members contradict each other
    >>> fitted = fit_members(drop_auxiliary, logits, torch.zeros(4, dtype=torch.int64))
    >>> fitted.bias[0] < 0 < fitted.bias[1]  # member 0 is right: it says "not mine" less often
    True
    """
    from scipy.optimize import minimize

    output, M = EnsembleOutput(logits.double()), len(logits)

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        with torch.enable_grad():
            values = torch.tensor(x, requires_grad=True)
            scale, bias = values.reshape(2, M, 1, 1).unbind(0)
            nll = _nll(combine(with_members(output, scale.exp(), bias - bias.mean())), target)
            nll = nll + values.square().sum() / (2 * len(target))
            nll.backward()
        assert values.grad is not None
        return nll.item(), values.grad.numpy()

    bounds = [(log(MIN_TEMPERATURE), log(MAX_TEMPERATURE))] * M + [(-MAX_BIAS, MAX_BIAS)] * M
    found = minimize(loss, np.zeros(2 * M), jac=True, method="L-BFGS-B", bounds=bounds).x
    return MemberCalibration(tuple(np.exp(found[:M]).tolist()), tuple((found[M:] - found[M:].mean()).tolist()))


def calibrate_members(
    combine: Combine, logits: Tensor, target: Tensor, ignore_index: int | None = None
) -> MemberCalibration:
    """Return the values of `fit_members`, or none if they do not raise the log-likelihood of other examples by 2.

    More parameters always fit better, so each half of the examples is judged with the values of the other half, and
    compared with one temperature for the ensemble, fitted in the same way. If the ensemble makes almost no error on
    these examples, almost nothing can be gained, and the members are left as they are. At most 20,000 evenly spaced
    examples or pixels are used.

    Args:
        combine: combiner of the method
        logits: members' logits (M, B, C + 1, …)
        target: labels (B, …)
        ignore_index: label of examples or pixels that are ignored
    """
    rows, labels = logits.movedim(2, -1).reshape(len(logits), -1, logits.shape[2]), target.flatten().long()
    if ignore_index is not None:
        rows, labels = rows[:, labels != ignore_index], labels[labels != ignore_index]
    chosen = torch.linspace(0, len(labels) - 1, min(len(labels), MAX_ROWS)).round().long()
    rows, labels = rows[:, chosen], labels[chosen]
    if len(labels) < 2:
        return MemberCalibration()
    plain, fitted = 0.0, 0.0
    for fold in (0, 1):
        use, judge = slice(fold, None, 2), slice(1 - fold, None, 2)
        none, own = MemberCalibration(), fit_members(combine, rows[:, use], labels[use])
        for members in (none, own):
            T = fit_temperature(_combined(combine, rows[:, use], members), labels[use])
            other = apply_temperature(_combined(combine, rows[:, judge], members), T)
            nll = float(_nll(other, labels[judge])) * len(labels[judge])
            plain, fitted = (plain + nll, fitted) if members is none else (plain, fitted + nll)
    return fit_members(combine, rows, labels) if fitted < plain - MIN_GAIN else MemberCalibration()


def _combined(combine: Combine, logits: Tensor, members: MemberCalibration) -> Tensor:
    output = EnsembleOutput(logits)
    if members.temperatures:
        scale, bias = (logits.new_tensor(values).reshape(-1, 1, 1) for values in members)
        output = with_members(output, scale, bias)
    return combine(output)


def _nll(probabilities: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log(), target)

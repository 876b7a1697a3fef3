"""A temperature and an auxiliary bias per member: against loops, found again, left out where it does not help."""

from math import exp, log

import pytest
import torch

from torchmcl import EnsembleOutput, methods
from torchmcl.inference.calibrate import calibrate
from torchmcl.inference.member_calibration import MemberCalibration, calibrate_members, fit_members
from torchmcl.structures.rejection import Rejection
from torchmcl.tasks.combiners import drop_auxiliary


def specialists(examples, seed=0):
    """Logits of two members with two classes each, and labels drawn from their combined probabilities."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, examples, 5, generator=generator)
    return logits, torch.multinomial(drop_auxiliary(logits), 1, generator=generator)[:, 0]


def slow_nll(logits, target, calibration):
    """The mean of -log p(y) by loops over examples, members and classes, from the definition of the combiner."""
    total = 0.0
    for b in range(len(target)):
        sums = [0.0] * 4
        for m in range(len(logits)):
            z = [float(value) / calibration.temperatures[m] for value in logits[m, b]]
            z[4] += calibration.bias[m]
            for c in range(4):
                sums[c] += exp(z[c]) / sum(map(exp, z))
        total -= log(sums[int(target[b])] / sum(sums))
    return total / len(target)


def slow_objective(logits, target, calibration):
    """The same, with the standard normal prior."""
    prior = sum(log(T) ** 2 for T in calibration.temperatures) + sum(b**2 for b in calibration.bias)
    return slow_nll(logits, target, calibration) + prior / (2 * len(target))


def test_no_neighbour_is_better():
    logits, target = specialists(60)
    found = fit_members(drop_auxiliary, logits, target)
    best = slow_objective(logits, target, found)
    for m in range(2):
        for factor, step in ((1.2, 0), (1 / 1.2, 0), (1, 0.2), (1, -0.2)):
            temperatures, bias = list(found.temperatures), list(found.bias)
            temperatures[m] *= factor
            bias[m] += step
            bias[1 - m] -= step
            inside = 0.05 <= temperatures[m] <= 20
            assert not inside or slow_objective(logits, target, MemberCalibration(temperatures, bias)) >= best - 1e-6


def test_what_was_distorted_is_found_again():
    logits, target = specialists(6000)
    distorted = logits.clone()
    distorted[0] *= 3
    distorted[1, :, 4] += 2
    found = calibrate_members(drop_auxiliary, distorted, target)
    assert found.temperatures == pytest.approx([3, 1], rel=0.2)
    assert found.bias[1] - found.bias[0] == pytest.approx(-2, abs=0.6)
    assert sum(found.bias) == pytest.approx(0, abs=1e-6)
    rule = Rejection(member_temperatures=found.temperatures, auxiliary_bias=found.bias)
    assert slow_nll(distorted[:, :50], target[:50], found) == pytest.approx(
        -float(drop_auxiliary(rule.calibrated(distorted[:, :50])).gather(1, target[:50, None]).log().mean()), abs=1e-4
    )


def test_members_that_need_nothing_are_left_alone():
    left = [calibrate_members(drop_auxiliary, *specialists(60, seed)) == MemberCalibration() for seed in range(6)]
    assert all(left)  # in sample, more parameters always fit better
    logits = torch.tensor([[[6.0, 0, 0, 0, 0]] * 150, [[0, 0, 0, 0, 2.0]] * 150])  # every example is answered correctly
    assert calibrate_members(drop_auxiliary, logits, torch.zeros(150, dtype=torch.int64)) == MemberCalibration()
    assert calibrate_members(drop_auxiliary, *specialists(1)) == MemberCalibration()


def test_pixels_are_examples_and_ignored_ones_are_not():
    logits, target = specialists(600)
    logits[0] *= 3
    plain = calibrate_members(drop_auxiliary, logits, target)
    images = logits.reshape(2, 100, 6, 5).transpose(2, 3)
    assert calibrate_members(drop_auxiliary, images, target.reshape(100, 6)) == plain
    extra = torch.cat([logits, torch.randn(2, 50, 5)], dim=1)
    ignored = torch.cat([target, torch.full((50,), 255)])
    assert calibrate_members(drop_auxiliary, extra, ignored, 255) == plain


def test_temperature_calibrates_members_where_it_helps():
    method = methods.build("amcl", 2, 4)
    logits, target = specialists(2000)
    logits[0] *= 3
    _, found, _ = calibrate(method.task, logits.transpose(0, 1), target, method=method, coverage=0.8, temperature=True)
    assert len(found.member_temperatures) == len(found.auxiliary_bias) == 2
    assert found.coverage == pytest.approx(0.8, abs=0.01)
    plain = Rejection(temperature=found.temperature)
    nll = [
        -float(drop_auxiliary(rule.calibrated(EnsembleOutput(logits))).gather(1, target[:, None]).log().mean())
        for rule in (plain, found)
    ]
    assert nll[1] < nll[0]
    _, without, _ = calibrate(method.task, logits.transpose(0, 1), target, method=method, coverage=0.8)
    assert without.member_temperatures == ()

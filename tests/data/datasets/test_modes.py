"""Synthetic targets with one mode or several modes."""

import pytest
import torch

from torchmcl import data
from torchmcl.data.datasets import modes


@pytest.mark.parametrize("name", ["three-modes", "grouped-modes"])
def test_training_examples_depend_on_the_seed_and_the_test_set_does_not(name):
    one, same, other = (data.load(name, seed=seed) for seed in (0, 0, 1))
    assert one.train.fingerprint == same.train.fingerprint != other.train.fingerprint
    assert one.test.fingerprint == other.test.fingerprint
    assert one.test.target.shape == (41, 25, 2)
    alone = data.load(name, parts=["test"])
    assert alone.test.fingerprint == one.test.fingerprint


def test_one_mode_becomes_three_with_their_weights():
    weights = torch.tensor(modes.WEIGHTS)
    target, mode = modes.draw(torch.tensor([[0.0], [1.0]]), 20_000, weights, torch.Generator().manual_seed(0))
    assert target[0].mean(0).abs().max() < 0.01  # at x = 0, all modes are the same
    assert target[0].std(0) == pytest.approx([modes.DEVIATION] * 2, rel=0.03)
    for number, weight in enumerate(modes.WEIGHTS):
        own = target[1][mode[1] == number]
        assert len(own) / 20_000 == pytest.approx(weight, abs=0.02)
        assert own.mean(0).norm() == pytest.approx(1, abs=0.02)
        assert own.std(0) == pytest.approx([modes.DEVIATION] * 2, rel=0.05)


def test_groups_are_the_modes():
    train = data.load("grouped-modes").train
    angle = torch.atan2(train.target[:, 1], train.target[:, 0])
    far = train.images[:, 0] > 0.9
    expected = torch.pi / 2 + 2 * torch.pi * train.group / modes.GROUPS
    assert (torch.cos(angle - expected)[far] > 0.7).all()

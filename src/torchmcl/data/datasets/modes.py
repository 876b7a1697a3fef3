"""Synthetic targets in the plane with one mode or several modes, depending on the input."""

from collections.abc import Sequence
from math import pi

import torch
from torch import Tensor

from torchmcl.data.examples import DataSet, Examples

WEIGHTS = (0.5, 0.3, 0.2)  # of the modes of three-modes
GROUPS = 8  # of grouped-modes
DEVIATION = 0.1  # of each mode
TRAINING = 2000
INPUTS, TARGETS = 41, 25  # of the test set
TEST_SEED = 1_000_003  # of the test set, which is the same for all seeds


def three_modes(parts: Sequence[str] = ("train", "test"), *, seed: int = 0) -> DataSet:
    """Generate targets with three modes that move apart as the input grows from 0 to 1.

    The target is normal, with standard deviation 0.1, around one of three points at the distance x from the origin,
    chosen with the probabilities 0.5, 0.3 and 0.2: one mode at x = 0, three modes at x = 1. It is the idea of the
    moving normal distributions of Perera et al. 2024; the numbers are our own. The training set has 2,000 examples. The
    test set is the same for all seeds: 41 inputs with 25 targets each.

    >>> data = three_modes()
    >>> data.train, data.test.target.shape
    (Examples(2000 of (1,), 2 target values), torch.Size([41, 25, 2]))
    """
    return _data_set("three-modes", parts, seed, torch.tensor(WEIGHTS))


def grouped_modes(parts: Sequence[str] = ("train", "test"), *, seed: int = 0) -> DataSet:
    """Generate targets like those of `three_modes` with eight equally probable modes, which are groups in training.

    >>> grouped_modes().train.groups
    ('0', '1', '2', '3', '4', '5', '6', '7')
    """
    return _data_set("grouped-modes", parts, seed, torch.full((GROUPS,), 1 / GROUPS), grouped=True)


def draw(x: Tensor, count: int, weights: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw `count` targets for each input: (N, 1) -> targets (N, count, 2) and their modes (N, count)."""
    mode = torch.multinomial(weights, len(x) * count, replacement=True, generator=generator).view(len(x), count)
    angle = pi / 2 + 2 * pi * mode / len(weights)
    centre = x.unsqueeze(2) * torch.stack([angle.cos(), angle.sin()], dim=2)
    return centre + DEVIATION * torch.randn(centre.shape, generator=generator), mode


def _data_set(name: str, parts: Sequence[str], seed: int, weights: Tensor, grouped: bool = False) -> DataSet:
    made = {}
    names = tuple(map(str, range(len(weights))))
    if "train" in parts:
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(TRAINING, 1, generator=generator)
        target, mode = draw(x, 1, weights, generator)
        made["train"] = Examples(x, target[:, 0], (), *((mode[:, 0], names) if grouped else ()))
    if "test" in parts:
        generator = torch.Generator().manual_seed(TEST_SEED)
        x = torch.linspace(0, 1, INPUTS).unsqueeze(1)
        target, _ = draw(x, TARGETS, weights, generator)
        made["test"] = Examples(x, target, ())
    return DataSet(name, made, preprocess="standardize", choices={"split": f"training examples drawn by seed {seed}"})

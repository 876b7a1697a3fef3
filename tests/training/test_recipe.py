import pytest
import torch

from torchmcl import UsageError
from torchmcl.training import Recipe


def test_the_papers_recipe():
    recipe = Recipe()
    assert [recipe.length(data) for data in ("cifar10", "cifar100", "tiny-imagenet", "icoseg")] == [100, 125, 150, 300]
    rates = [recipe.rate(epoch, "cifar10") for epoch in range(1, 101)]
    expected = [0.1 * 0.2 ** ((epoch - 1) // 25) for epoch in range(1, 101)]
    assert rates == pytest.approx(expected)
    group = recipe.build([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 5e-4)
    assert recipe.batch_size == 128


def test_drops_are_in_proportion_unless_given():
    assert [Recipe(epochs=20).rate(e, "cifar10") for e in (5, 6, 10, 11)] == pytest.approx([0.1, 0.02, 0.02, 0.004])
    assert Recipe(epochs=20, drop_every=7).rate(8, "cifar10") == pytest.approx(0.02)
    assert Recipe(epochs=1).rate(1, "cifar10") == 0.1


def test_other_schedules_and_optimisers():
    assert Recipe(schedule="constant").rate(99, "cifar10") == 0.1
    cosine = [Recipe(schedule="cosine", epochs=10).rate(epoch, "digits") for epoch in range(1, 11)]
    assert cosine[0] == 0.1
    assert cosine == sorted(cosine, reverse=True)
    weights = [torch.nn.Parameter(torch.zeros(1))]
    assert isinstance(Recipe(optimizer="adam").build(weights), torch.optim.Adam)
    assert isinstance(Recipe(optimizer="adamw").build(weights), torch.optim.AdamW)
    assert not Recipe(momentum=0).build(weights).param_groups[0]["nesterov"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"momentum": 1},
        {"weight_decay": -1},
        {"clip": 0},
        {"ema": 1},
        {"patience": 0},
        {"drop_every": 0},
        {"optimizer": "adamm"},
        {"schedule": "linear"},
    ],
)
def test_bad_recipes(wrong):
    with pytest.raises(UsageError, match=r"Expected|Unknown"):
        Recipe(**wrong)

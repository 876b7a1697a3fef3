import pytest
import torch

from torchmcl import State
from torchmcl.objectives import costs
from torchmcl.testing import check_cost

ALL = (costs.cross_entropy, costs.nothing, costs.to_uniform, costs.to_random_label)


@pytest.mark.parametrize("cost", [*ALL, costs.Scaled(costs.to_uniform, 0.75)])
def test_conformance(cost):
    check_cost(cost)


def test_conformance_with_auxiliary():
    check_cost(costs.to_auxiliary, auxiliary=True)
    check_cost(costs.Scaled(costs.to_auxiliary, 0.01), auxiliary=True)


def test_conformance_finds_what_is_wrong():
    for wrong in (
        lambda z, y, s: costs.cross_entropy(z, y, s).mean(1, keepdim=True),
        lambda z, y, s: costs.cross_entropy(z, y, s) - costs.cross_entropy(z, y, s).mean(0),
        lambda z, y, s: -z.softmax(2).log().flatten(2).sum(2),
    ):
        with pytest.raises(AssertionError):
            check_cost(wrong)


def test_random_label_is_the_uniform_cost_on_average():
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 4), torch.zeros(3, dtype=int)
    drawn = torch.stack([costs.to_random_label(logits, target, State()) for _ in range(20_000)]).mean(0)
    expected = costs.to_uniform(logits, target, State()) + torch.tensor(4.0).log()
    torch.testing.assert_close(drawn, expected, rtol=0.03, atol=0.0)


def test_pixels_are_averaged_not_summed():
    logits, target = torch.randn(2, 3, 4, 5, 6), torch.randint(4, (3, 5, 6))
    flat = costs.cross_entropy(logits.flatten(3).transpose(2, 3).flatten(1, 2), target.flatten(), State())
    torch.testing.assert_close(costs.cross_entropy(logits, target, State()), flat.view(2, 3, 30).mean(2))

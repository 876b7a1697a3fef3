import pytest
import torch
from torch import nn

from torchmcl.errors import UsageError
from torchmcl.networks import mlp


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_parameters(depth: int) -> None:
    count = sum(p.numel() for p in mlp(3, inputs=4, width=7, depth=depth).parameters())
    assert count == 4 * 7 + 7 + (depth - 1) * (7 * 7 + 7) + 7 * 3 + 3


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize(("cut", "above"), [("exchange", lambda depth: depth - 1), ("last_stage", lambda _: 1)])
def test_cuts_leave_hidden_layers_above(depth: int, cut: str, above: object) -> None:
    network = mlp(3, inputs=4, width=7, depth=depth, cut=cut)
    assert sum(isinstance(m, nn.ReLU) for m in network.body) == min(above(depth), depth - 1)
    assert network.stem(torch.randn(2, 4)).shape == (2, 7)
    assert network.features == 7


def test_takes_any_shape_of_the_right_size() -> None:
    network, x = mlp(3, inputs=24), torch.randn(2, 2, 3, 4)
    assert torch.equal(network(x), network(x.flatten(1)))


def test_trains_on_one_row_as_on_many() -> None:
    network, x = mlp(3, inputs=4), torch.randn(5, 4)
    torch.testing.assert_close(network(x[:1]), network(x)[:1])


@pytest.mark.parametrize("option", ["depth", "inputs"])
def test_bad_sizes(option: str) -> None:
    with pytest.raises(UsageError, match=rf"^Expected {option} to be an integer >= 1, got {option}=0\.$"):
        mlp(3, **{"inputs": 4, option: 0})

"""The values that all parts exchange: checks, precision, weighted means, and the two parts of a network."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from torchmcl import EnsembleOutput, Split, State, UsageError
from torchmcl.structures import per_example, to_float32


@pytest.mark.parametrize(
    "logits",
    [torch.zeros(2, 3), torch.zeros(2, 0, 3), torch.zeros(2, 3, 4, dtype=torch.int64), [[[0.0]]]],
    ids=["two axes", "no examples", "integers", "a list"],
)
def test_outputs_without_the_three_axes_are_rejected(logits):
    with pytest.raises(UsageError):
        EnsembleOutput.of(logits)


def test_a_gate_must_have_one_weight_per_member_and_example():
    with pytest.raises(UsageError, match=r"\(2, 3\)"):
        EnsembleOutput.of(EnsembleOutput(torch.zeros(2, 3, 4), gate=torch.zeros(3, 2)))
    with pytest.raises(UsageError, match="gate"):
        EnsembleOutput(torch.zeros(2, 3, 4)).require_gate()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_raised_and_never_lowered(dtype):
    assert to_float32(torch.zeros(1, dtype=dtype)).dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@given(st.integers(1, 4), st.integers(0, 2**31))
def test_a_weighted_mean_equals_a_loop(pixels, seed):
    generator = torch.Generator().manual_seed(seed)
    cost, weight, loss_weight = (torch.rand(5, n, generator=generator) for n in (pixels, 1, pixels))
    found = State(sample_weight=weight[:, 0], loss_weight=loss_weight).mean(cost)
    total = sum(float(weight[b]) * float((cost[b] * loss_weight[b]).sum()) / pixels for b in range(5))
    torch.testing.assert_close(float(found), total / float(weight.sum()))


def test_the_mean_over_valid_pixels():
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    valid = torch.tensor([[True, True, False], [False, False, False]])
    assert per_example(values, valid).tolist() == [1.5, 0.0]


def test_a_split_network_equals_the_network():
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    split, x = Split.at(layers, 2), torch.randn(5, 4)
    assert torch.equal(split(x), layers(x))
    assert split.features == 8

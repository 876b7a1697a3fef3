import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torchmetrics.functional.classification import multiclass_calibration_error

from torchmcl import metrics


def draw(seed: int, B: int, C: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = (5 * torch.randn(B, C, generator=generator, dtype=torch.float64)).softmax(1)
    return p, torch.randint(C, (B,), generator=generator)


@given(seed=st.integers(0, 10_000), B=st.integers(1, 40), C=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_against_the_definition(seed: int, B: int, C: int) -> None:
    p, y = draw(seed, B, C)
    nll = sum(-math.log(p[b, y[b]]) for b in range(B)) / B
    brier = sum((float(p[b, c]) - (c == int(y[b]))) ** 2 for b in range(B) for c in range(C)) / B
    assert_close(float(metrics.nll(p, y)), nll)
    assert_close(float(metrics.brier(p, y)), brier)
    assert_close(float(metrics.ece(p, y)), slow_ece(p, y))


def slow_ece(p: torch.Tensor, y: torch.Tensor, bins: int = 15) -> float:
    total = 0.0
    for b in range(bins):
        inside = [i for i, row in enumerate(p) if b / bins < float(row.max()) <= (b + 1) / bins]
        if inside:
            accuracy = sum(int(p[i].argmax()) == int(y[i]) for i in inside) / len(inside)
            confidence = sum(float(p[i].max()) for i in inside) / len(inside)
            total += len(inside) / len(p) * abs(accuracy - confidence)
    return total


def test_ece_is_torchmetrics_where_no_confidence_is_an_edge() -> None:
    p, y = draw(3, 300, 4)
    p, y = p[p.amax(1) < 1], y[p.amax(1) < 1]
    theirs = multiclass_calibration_error(p, y, num_classes=4, n_bins=15)
    assert_close(metrics.ece(p, y), theirs, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_ece_has_fifteen_bins_where_torchmetrics_has_sixteen() -> None:
    p, y = torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0])
    assert_close(metrics.ece(p, y), torch.tensor(0.475))
    assert_close(multiclass_calibration_error(p, y, num_classes=2, n_bins=15), torch.tensor(0.525))


def test_an_edge_belongs_to_the_bin_below() -> None:
    edge = float(torch.linspace(0, 1, 16)[9])
    p = torch.tensor([[edge, 1 - edge], [edge - 0.02, 1.02 - edge]])
    assert_close(metrics.ece(p, torch.tensor([0, 1])), torch.tensor(edge - 0.01 - 0.5))  # one bin, half of it right


def test_ece_bears_a_confidence_that_rounds_to_above_one() -> None:
    p = torch.tensor([[1.0 + 2**-23, 0.0], [0.6, 0.4]])
    assert_close(metrics.ece(p, torch.tensor([0, 0])), torch.tensor(0.2))


def test_known_values() -> None:
    certain, uniform = torch.eye(4), torch.full((4, 4), 0.25)
    y = torch.arange(4)
    assert [float(f(certain, y)) for f in (metrics.nll, metrics.brier, metrics.ece)] == [0, 0, 0]
    assert_close(float(metrics.nll(uniform, y)), math.log(4))
    assert metrics.brier(uniform, y) == 0.75
    assert metrics.brier(certain, 3 - y) == 2
    assert metrics.ece(certain, 3 - y) == 1


def test_nll_of_an_impossible_truth_is_finite() -> None:
    for dtype, bound in ((torch.float16, 87.3365), (torch.float32, 87.3365), (torch.float64, 708.3964)):
        result = metrics.nll(torch.tensor([[0.0, 1.0]], dtype=dtype), torch.tensor([0]))
        assert_close(float(result), bound, rtol=1e-5, atol=0)

"""Losses of scores against slow loops; the golden tests compare them with published formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.functional import score_loss, score_probabilities

seeds = st.integers(0, 2**31)


def draw(seed, M, B, T):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(M, B, generator=generator, dtype=torch.float64).requires_grad_()
    losses = torch.rand(M, B, *[T] * bool(T), generator=generator, dtype=torch.float64).requires_grad_()
    mask = (torch.rand(B, T, generator=generator) < 0.5) | (torch.arange(T) == 0) if T else None
    return scores, losses, mask


@pytest.mark.parametrize("kind", ["bce", "ce", "mixture"])
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_equal_a_slow_loop(kind, seed, M, B, T):
    scores, losses, mask = draw(seed, M, B, T)
    found = score_loss(scores, losses, kind, mask=mask)
    for b in range(B):
        rows = [losses[:, b]] if mask is None else [losses[:, b, t] for t in range(T) if mask[b, t]]
        best = [min(range(M), key=lambda m, row=row: float(row[m].detach())) for row in rows]
        total = torch.log(sum(torch.exp(scores[m, b]) for m in range(M)))
        if kind == "bce":
            parts = [torch.log1p(torch.exp(scores[m, b] if m not in best else -scores[m, b])) for m in range(M)]
            slow = sum(parts) / M
        elif kind == "ce":
            slow = sum(total - scores[m, b] for m in best) / len(best)
        else:
            likelihood = [sum(torch.exp(scores[m, b] - total - row[m].detach()) for m in range(M)) for row in rows]
            slow = -sum(map(torch.log, likelihood)) / len(rows)
        torch.testing.assert_close(found[b], slow)
        torch.testing.assert_close(*(torch.autograd.grad(one, scores, retain_graph=True) for one in (found[b], slow)))
    assert torch.autograd.grad(found.sum(), losses, allow_unused=True)[0] is None


@given(seeds, st.integers(2, 6), st.integers(1, 6))
def test_random_losers_are_as_many_as_asked_for(seed, M, negatives):
    """With distinct scores, the mean tells which losers were counted."""
    scores = torch.arange(M, dtype=torch.float64)[:, None].repeat(1, 200) * math.pi
    losses = torch.arange(M, dtype=torch.float64)[:, None].repeat(1, 200)
    torch.manual_seed(seed)
    found = score_loss(scores, losses, negatives=negatives)
    cost = [math.log1p(math.exp(-float(scores[0, 0])))] + [math.log1p(math.exp(float(s))) for s in scores[1:, 0]]
    n = min(negatives, M - 1)
    losers = sorted(cost[1:])
    low, high = ((cost[0] + sum(part)) / (n + 1) for part in (losers[:n], losers[-n:]))
    assert low - 1e-9 <= float(found.min())
    assert float(found.max()) <= high + 1e-9
    expected = (cost[0] + n * sum(cost[1:]) / (M - 1)) / (n + 1)
    assert float(found.mean()) == pytest.approx(expected, abs=4 * (high - low) / 200**0.5 + 1e-9)


@pytest.mark.parametrize("kind", ["bce", "ce", "mixture"])
@given(seeds, st.integers(1, 5))
def test_probabilities_sum_to_one(kind, seed, M):
    scores, *_ = draw(seed, M, 3, 0)
    found = score_probabilities(100 * scores, kind)
    torch.testing.assert_close(found.sum(0), torch.ones(3, dtype=torch.float64))
    plain = scores.sigmoid() if kind == "bce" else scores.exp()
    torch.testing.assert_close(score_probabilities(scores, kind), plain / plain.sum(0))

"""Densities on Voronoi cells against slow loops and integrals, samples against densities, and the EM step."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammainc

from torchmcl import UsageError, metrics
from torchmcl.inference.hypotheses import (
    em_step,
    most_probable,
    sample,
    sample_mixture,
    voronoi_log_density,
    voronoi_nll,
    weighted_mean,
)
from torchmcl.metrics.voronoi import unit_vectors

seeds = st.integers(0, 2**31)


def draw(seed, M, B, D):
    generator = torch.Generator().manual_seed(seed)
    hypotheses = torch.randn(M, B, D, generator=generator, dtype=torch.float64)
    scores = torch.randn(M, B, generator=generator, dtype=torch.float64).softmax(0)
    return hypotheses, scores, torch.randn(B, D, generator=generator, dtype=torch.float64)


def cell(f, b, y):
    return min(range(len(f)), key=lambda m: float((f[m, b] - y).norm()))


def boundary(f, b, k, u):
    """The radius of the cell of hypothesis k in direction u, by bisection of "the closest hypothesis is k"."""
    low, high = 0.0, 1e3
    if cell(f, b, f[k, b] + high * u) == k:
        return math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cell(f, b, f[k, b] + middle * u) == k else (low, middle)
    return low


@given(seeds, st.integers(1, 4), st.integers(1, 3), st.floats(0.1, 2))
def test_the_density_equals_the_formula_of_voronoi_wta(seed, M, D, h):
    """gamma_k K_h(y - f_k) / V_k for y in cell k; V_k by rays to the cell's boundary, as in the official code."""
    f, s, target = draw(seed, M, 2, D)
    found = voronoi_log_density(f, s, target, bandwidth=h, directions=20, seed=3)
    rays = unit_vectors(D, 20, 3).double()
    for b in range(2):
        y = target[b]
        k = cell(f, b, y)
        radii = [boundary(f, b, k, u) for u in rays]
        volume = sum(1.0 if math.isinf(r) else float(gammainc(D / 2, r**2 / (2 * h**2))) for r in radii) / len(radii)
        kernel = math.exp(-float((y - f[k, b]).square().sum()) / (2 * h**2)) / (h * math.sqrt(2 * math.pi)) ** D
        assert float(found[b].exp()) == pytest.approx(float(s[k, b]) * kernel / volume, rel=1e-5)


@given(seeds, st.integers(1, 6), st.floats(0.05, 3))
def test_the_density_integrates_to_one_in_one_dimension(seed, M, h):
    f, s, _ = draw(seed, M, 1, 1)
    grid = torch.linspace(-30, 30, 60_001, dtype=torch.float64)
    log_density = voronoi_log_density(f.expand(-1, len(grid), -1), s.expand(-1, len(grid)), grid[:, None], bandwidth=h)
    assert float(torch.trapezoid(log_density.exp(), grid)) == pytest.approx(1, abs=0.02)
    for m in range(M):  # each cell has the mass of its score
        inside = (f[:, 0] - grid).abs().argmin(0) == m
        mass = (log_density.exp() * inside).sum() * (grid[1] - grid[0])
        assert float(mass) == pytest.approx(float(s[m, 0]), abs=0.02)


@pytest.mark.parametrize("h", [0.2, 1.0])
def test_the_density_integrates_to_about_one_in_two_dimensions(h):
    f, s, _ = draw(7, 5, 1, 2)
    side = torch.linspace(-7, 7, 121, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    log_density = voronoi_log_density(f.expand(-1, len(grid), -1), s.expand(-1, len(grid)), grid, bandwidth=h)
    assert float(log_density.exp().sum() * (side[1] - side[0]) ** 2) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("D", [1, 2, 3])
def test_samples_come_from_the_density(D):
    f, s, _ = draw(2, 4, 2, D)
    samples = sample(f, s, 4000, bandwidth=0.7, seed=5)
    assert samples.shape == (4000, 2, D)
    nearest = (f.unsqueeze(1) - samples).norm(dim=3).argmin(0)  # (4000, B)
    for b in range(2):
        share = torch.bincount(nearest[:, b], minlength=4) / 4000
        torch.testing.assert_close(share.double(), s[:, b], atol=0.03, rtol=0)
    # In cell k, the kernel is truncated: samples by rejection have the same distances from the hypothesis.
    plain = f + 0.7 * torch.randn(4000, 4, 2, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    closest = (f.reshape(1, 1, 4, 2, D) - plain.unsqueeze(2)).norm(dim=4).argmin(2)
    for m in range(4):
        kept = closest[:, m, 0] == m
        expected = (plain[kept, m, 0] - f[m, 0]).norm(dim=1)
        found = (samples[nearest[:, 0] == m, 0] - f[m, 0]).norm(dim=1)
        assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=0.08)


def test_samples_depend_on_the_seed_only():
    f, s, _ = draw(0, 3, 2, 2)
    torch.manual_seed(1)
    one, two, three = (sample(f, s, 5, bandwidth=1.0, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


def test_the_nll_of_the_truth_is_lower_than_that_of_another_density():
    f = torch.tensor([[-1.0], [1.0]]).unsqueeze(2).expand(2, 2000, 1)
    target = sample(f[:, :1], torch.tensor([[0.2], [0.8]]), 2000, bandwidth=0.3)[:, 0]
    right, wrong = torch.tensor([[0.2], [0.8]]).expand(2, 2000), torch.full((2, 2000), 0.5)
    assert voronoi_nll(f, right, target, bandwidth=0.3) < voronoi_nll(f, wrong, target, bandwidth=0.3)
    assert voronoi_nll(f, right, target, bandwidth=0.3) < voronoi_nll(f, right, target, bandwidth=0.6)
    assert voronoi_nll(f, right, target, bandwidth=0.3) < voronoi_nll(f, right, target, bandwidth=0.15)


@given(seeds, st.integers(1, 4), st.integers(4, 8), st.integers(1, 3))
def test_an_em_step_equals_a_slow_loop(seed, M, B, D):
    f, s, target = draw(seed, M, B, D)
    found = em_step(f, s, target, scale=0.8)
    r = []
    for b in range(B):
        density = [float(s[m, b]) * math.exp(-float((f[m, b] - target[b]).square().sum()) / 1.28) for m in range(M)]
        r.append([one / sum(density) for one in density])
    for m in range(M):
        total = sum(r[b][m] for b in range(B))
        variance = sum(r[b][m] * float((f[m, b] - target[b]).square().sum()) for b in range(B)) / (D * total)
        assert float(found.weights[m]) == pytest.approx(total / B)
        assert float(found.scales[m]) == pytest.approx(math.sqrt(variance))
    torch.testing.assert_close(found.prior, s.mean(1))


@given(seeds, st.integers(1, 5), st.integers(1, 3))
def test_an_em_step_never_lowers_the_likelihood(seed, M, D):
    """Of a mixture with the same weights for all examples; such scores become the weights."""
    f, _, target = draw(seed, M, 30, D)
    uniform = torch.full((M, 30), 1 / M, dtype=torch.float64)
    scale = float(metrics.oracle_rmse(f, target))
    found = em_step(f, uniform, target)
    scores = found.calibrated(uniform)
    torch.testing.assert_close(scores, found.weights.unsqueeze(1).expand(M, 30))
    before = metrics.mixture_nll(f, uniform, target, scale)
    assert metrics.mixture_nll(f, scores, target, found.scales.reshape(M, 1, 1)) <= before + 1e-9


def test_an_em_step_finds_the_scales_and_weights_of_a_mixture():
    generator = torch.Generator().manual_seed(0)
    component = (torch.rand(20_000, generator=generator) < 0.3).long()
    f = torch.tensor([5.0, -5.0]).reshape(2, 1, 1).expand(2, 20_000, 1)
    noise = torch.tensor([1.0, 0.2])[component] * torch.randn(20_000, generator=generator)
    target = f[component, torch.arange(20_000)] + noise[:, None]
    found = em_step(f, torch.full((2, 20_000), 0.5), target)
    assert found.weights.tolist() == pytest.approx([0.7, 0.3], abs=0.01)
    assert found.scales.tolist() == pytest.approx([1.0, 0.2], abs=0.02)


def test_answers():
    f, s, _ = draw(3, 4, 5, 2)
    for b in range(5):
        torch.testing.assert_close(weighted_mean(f, s)[b], sum(s[m, b] * f[m, b] for m in range(4)))
        assert torch.equal(most_probable(f, s)[b], f[int(s[:, b].argmax()), b])


@given(seeds)
def test_permuting_hypotheses_changes_nothing(seed):
    f, s, target = draw(seed, 4, 3, 2)
    order = torch.tensor([3, 1, 0, 2])
    for one, two in (
        (
            voronoi_log_density(f, s, target, bandwidth=1.0),
            voronoi_log_density(f[order], s[order], target, bandwidth=1.0),
        ),
        (weighted_mean(f, s), weighted_mean(f[order], s[order])),
        (most_probable(f, s), most_probable(f[order], s[order])),
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize(("kernel", "factor"), [("gaussian", 1.0), ("laplace", 2**0.5)])
def test_samples_of_a_mixture_have_its_likelihood_and_moments(kernel, factor):
    """The mean of -log p over samples is the entropy, which no other mixture reaches; Laplace has std sqrt(2) scale."""
    _, s, _ = draw(1, 2, 1, 2)
    f = torch.tensor([-50.0, 50.0], dtype=torch.float64).reshape(2, 1, 1).expand(2, 1, 2)
    scales = torch.tensor([0.5, 1.0, 1.5, 0.7], dtype=torch.float64).reshape(2, 1, 2)
    drawn = sample_mixture(f, s, scales, 20_000, kernel=kernel, seed=1)
    assert drawn.shape == (20_000, 1, 2)
    member = (drawn - f.unsqueeze(1)).norm(dim=-1).argmin(0)[:, 0]
    for m in range(2):
        part = drawn[member == m, 0]
        assert len(part) / 20_000 == pytest.approx(float(s[m, 0]), abs=0.02)
        torch.testing.assert_close(part.mean(0), f[m, 0], atol=0.05, rtol=0)
        torch.testing.assert_close(part.std(0), factor * scales[m, 0], atol=0, rtol=0.05)
    each = [
        float(metrics.mixture_nll(f.expand(2, 20_000, 2), s.expand(2, 20_000), drawn[:, 0], wrong * scales, kernel))
        for wrong in (0.8, 1.0, 1.25)
    ]
    assert each[1] < min(each[0], each[2])


def test_bad_input_is_one_clear_line():
    f, s, target = draw(0, 4, 3, 2)
    with pytest.raises(UsageError, match=r"scales \(M, B, D\), got"):
        sample_mixture(f, s, f[:, :1], 1)
    with pytest.raises(UsageError, match="Unknown kernel 'normal'"):
        sample_mixture(f, s, f.exp(), 1, kernel="normal")
    with pytest.raises(UsageError, match="Expected a bandwidth > 0, got 0"):
        voronoi_nll(f, s, target, bandwidth=0)
    with pytest.raises(UsageError, match=r"scores \(M, B\) and target \(B, D\), got"):
        voronoi_nll(f, s[:3], target, bandwidth=1.0)
    with pytest.raises(UsageError, match="Expected at least 1 sample per example, got 0"):
        sample(f, s, 0, bandwidth=1.0)
    with pytest.raises(UsageError, match="at least as many examples as hypotheses, got 3 examples and 4 hypotheses"):
        em_step(f, s, target)

"""Metrics of hypotheses against their definitions, as slow loops, and against scipy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wasserstein_distance, wasserstein_distance_nd
from torch.testing import assert_close

from torchmcl import UsageError, metrics

seeds = st.integers(0, 2**31)
sizes = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))


def draw(seed, M, B, D, T):
    """Hypotheses (M, B, D), scores (M, B), and targets (B, D) for T = 0, or (B, T, D) padded with NaN."""
    generator = torch.Generator().manual_seed(seed)
    hypotheses = torch.randn(M, B, D, generator=generator, dtype=torch.float64)
    scores = torch.randn(M, B, generator=generator, dtype=torch.float64).softmax(0)
    target = torch.randn(B, *[T] * bool(T), D, generator=generator, dtype=torch.float64)
    if T:
        padding = torch.rand(B, T, generator=generator) < 0.5
        padding[:, -1] = False
        target[padding] = torch.nan
    return hypotheses, scores, target


def targets(target, b):
    return [row for row in target[b].reshape(-1, target.shape[-1]) if not row.isnan().any()]


def by_target(target, value):
    """The mean over examples of the mean over targets of value(b, y)."""
    B = len(target)
    return sum(sum(value(b, y) for y in targets(target, b)) / len(targets(target, b)) for b in range(B)) / B


@given(seeds, sizes)
def test_errors(seed, size):
    M, B, D, T = size
    f, _, target = draw(seed, M, B, D, T)
    best = by_target(target, lambda b, y: min(float(((f[m, b] - y) ** 2).sum()) for m in range(M)))
    assert_close(float(metrics.distortion(f, target)), best)
    assert_close(float(metrics.oracle_rmse(f, target)), math.sqrt(best / D))
    for m in range(M):
        mse = by_target(target, lambda b, y, m=m: float(((f[m, b] - y) ** 2).mean()))
        assert_close(float(metrics.member_rmse(f, target)[m]), math.sqrt(mse))
        assert_close(float(metrics.rmse(f[m], target)), math.sqrt(mse))


@given(seeds, sizes)
def test_winners(seed, size):
    M, B, D, T = size
    f, _, target = draw(seed, M, B, D, T)
    found = metrics.winners(f, target)
    for b in range(B):
        closest = [min(range(M), key=lambda m, b=b, y=y: float((f[m, b] - y).norm())) for y in targets(target, b)]
        assert_close(found[:, b].tolist(), [closest.count(m) / len(closest) for m in range(M)])
    assert_close(metrics.share(found).sum(), torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("kernel", ["gaussian", "laplace"])
@given(seeds, sizes)
def test_mixture_nll(kernel, seed, size):
    M, B, D, T = size
    f, s, target = draw(seed, M, B, D, T)
    scale = 0.3 + f.abs()
    distribution = torch.distributions.Normal if kernel == "gaussian" else torch.distributions.Laplace

    def nll(b, y):
        return -math.log(
            sum(
                float(s[m, b]) * math.exp(float(distribution(f[m, b], scale[m, b]).log_prob(y).sum())) for m in range(M)
            )
        )

    assert_close(float(metrics.mixture_nll(f, s, target, scale, kernel)), by_target(target, nll))
    assert_close(metrics.mixture_nll(f, s, target, 0.5), metrics.mixture_nll(f, s, target, torch.full((1, 1, 1), 0.5)))


@given(seeds, sizes)
def test_crps_and_energy_score(seed, size):
    M, B, D, T = size
    f, s, target = draw(seed, M, B, D, T)

    def score(b, y, norm):
        near = sum(float(s[m, b]) * norm(f[m, b] - y) for m in range(M))
        pairs = [(m, n) for m in range(M) for n in range(M)]
        return near - sum(float(s[m, b] * s[n, b]) * norm(f[m, b] - f[n, b]) for m, n in pairs) / 2

    crps = by_target(target, lambda b, y: score(b, y, lambda z: float(z.abs().mean())))
    energy = by_target(target, lambda b, y: score(b, y, lambda z: float(z.norm())))
    assert_close(float(metrics.crps(f, s, target)), crps)
    assert_close(float(metrics.energy_score(f, s, target)), energy)


def test_crps_is_exact_for_large_offsets():
    f, s, target = draw(0, 5, 4, 1, 0)
    near = metrics.crps(f.float(), s.float(), target.float())
    assert_close(metrics.crps(f.float() + 4096, s.float(), target.float() + 4096), near, rtol=2e-3, atol=0)


@given(seeds, sizes)
def test_earth_movers_distance_equals_scipy(seed, size):
    M, B, D, T = size
    f, s, target = draw(seed, M, B, D, T)
    expected = 0.0
    for b in range(B):
        y = torch.stack(targets(target, b))
        if D == 1:
            expected += wasserstein_distance(f[:, b, 0], y[:, 0], s[:, b]) / B
        else:
            expected += wasserstein_distance_nd(f[:, b].numpy(), y.numpy(), s[:, b].numpy()) / B
    assert_close(float(metrics.earth_movers_distance(f, s, target)), expected, rtol=1e-6, atol=1e-7)


def test_earth_movers_distance_of_many_examples_in_float32():
    """Rounded or tiny masses must not make the linear program infeasible."""
    generator = torch.Generator().manual_seed(0)
    f, target = torch.randn(16, 50, 1, generator=generator), torch.randn(50, 7, 1, generator=generator)
    s = (8 * torch.randn(16, 50, generator=generator)).softmax(0)  # some masses are tiny
    flat = [torch.cat([part, torch.zeros_like(part)], dim=2) for part in (f, target)]  # a line in the plane
    expected = metrics.earth_movers_distance(f, s, target)
    assert_close(metrics.earth_movers_distance(flat[0], s, flat[1]), expected, rtol=1e-5, atol=1e-6)


def test_earth_movers_distance_of_one_target_is_the_expected_distance():
    f, s, target = draw(0, 4, 3, 2, 0)
    expected = (s * (f - target).norm(dim=2)).sum(0).mean()
    assert_close(metrics.earth_movers_distance(f, s, target), expected)


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_trajectories(seed, M, B, S):
    generator = torch.Generator().manual_seed(seed)
    f = 2 * torch.randn(M, B, S, 2, generator=generator, dtype=torch.float64)
    target = torch.randn(B, S, 2, generator=generator, dtype=torch.float64)
    s = torch.rand(M, B, generator=generator, dtype=torch.float64).softmax(0)

    def displacement(m, b, t):
        return math.hypot(*(f[m, b, t] - target[b, t]).tolist())

    ade = [min(sum(displacement(m, b, t) for t in range(S)) / S for m in range(M)) for b in range(B)]
    final = [[displacement(m, b, S - 1) for m in range(M)] for b in range(B)]
    best = [min(range(M), key=row.__getitem__) for row in final]
    assert_close(float(metrics.min_ade(f, target)), sum(ade) / B)
    assert_close(float(metrics.min_fde(f, target)), sum(map(min, final)) / B)
    assert_close(float(metrics.miss_rate(f, target)), sum(min(row) > 2 for row in final) / B)
    brier = sum(final[b][m] + (1 - float(s[m, b])) ** 2 for b, m in enumerate(best)) / B
    assert_close(float(metrics.brier_min_fde(f, s, target)), brier)


@given(seeds, sizes)
def test_permuting_hypotheses_changes_nothing(seed, size):
    f, s, target = draw(seed, *size)
    order = torch.randperm(size[0], generator=torch.Generator().manual_seed(seed))
    for metric in (metrics.crps, metrics.energy_score, metrics.earth_movers_distance):
        assert_close(metric(f[order], s[order], target), metric(f, s, target), rtol=1e-6, atol=1e-7)
    assert_close(metrics.oracle_rmse(f[order], target), metrics.oracle_rmse(f, target))


def test_a_sure_and_right_hypothesis_scores_zero():
    f, s, target = torch.randn(3, 5, 2), torch.zeros(3, 5), torch.randn(5, 2)
    f[1], s[1] = target, 1.0
    for metric in (metrics.crps, metrics.energy_score, metrics.earth_movers_distance):
        assert_close(metric(f, s, target), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert metrics.oracle_rmse(f, target) == 0


@pytest.mark.parametrize(
    ("metric", "inputs", "message"),
    [
        (metrics.rmse, (torch.ones(3), torch.ones(3)), r"Expected hypotheses \(M, B, D\), target \(B, D\)"),
        (
            metrics.oracle_rmse,
            (torch.ones(2, 3, 1), torch.ones(3, 2)),
            r"target \(B, D\), got \(2, 3, 1\) and \(3, 2\)",
        ),
        (metrics.crps, (torch.ones(2, 3, 1), torch.ones(3, 2), torch.ones(3, 1)), r"and scores \(M, B\), got"),
        (metrics.min_ade, (torch.ones(2, 3, 4, 2), torch.ones(3, 5, 2)), r"Expected trajectories \(M, B, S, D\)"),
        (metrics.brier_min_fde, (torch.ones(2, 3, 4, 2), torch.ones(2, 2), torch.ones(3, 4, 2)), r"scores \(M, B\)"),
    ],
)
def test_wrong_shapes_are_one_clear_line(metric, inputs, message):
    with pytest.raises(UsageError, match=message):
        metric(*inputs)


def test_unknown_kernel():
    with pytest.raises(UsageError, match=r"Unknown kernel 'gauss'\. Did you mean 'gaussian'"):
        metrics.MixtureNLL("gauss")


def test_metrics_of_hypotheses_that_diverged_are_nan():
    f, s, target = draw(0, 2, 2, 2, 2)
    for metric in (metrics.crps, metrics.energy_score, metrics.earth_movers_distance):
        assert metric(f * torch.nan, s, target).isnan()
    assert metrics.oracle_rmse(f * torch.nan, target).isnan()


def test_a_scale_of_the_wrong_shape():
    f, s, y = torch.zeros(2, 3, 1), torch.full((2, 3), 0.5), torch.zeros(3, 1)
    with pytest.raises(UsageError, match=r"Expected a scale that broadcasts to \(2, 3, 1\), got \(3, 2\) of float32"):
        metrics.mixture_nll(f, s, y, torch.ones(3, 2))

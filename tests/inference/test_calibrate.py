"""The density of continuous targets, against slow loops, and its calibration."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import gammainc

from torchmcl import Classification, Regression, UsageError
from torchmcl.inference.calibrate import BANDWIDTHS, calibrate, fit_bandwidth
from torchmcl.inference.predictor import RegressionAnswer
from torchmcl.metrics.voronoi import unit_vectors, voronoi_log_density


def random_outputs(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def slow_voronoi(f, s, y, h):
    """The log-density of one target under the kernel of the closest hypothesis, normalised to its cell."""
    D = len(y)
    m = min(range(len(f)), key=lambda n: float((f[n] - y).square().sum()))
    mass = []
    for u in unit_vectors(D, 256, 0).double():
        radius = math.inf
        for n in range(len(f)):
            along = float(u @ (f[n] - f[m]))
            if along > 0:
                radius = min(radius, float((f[n] - f[m]).square().sum()) / (2 * along))
        mass.append(gammainc(D / 2, radius**2 / (2 * h**2)) if math.isfinite(radius) else 1.0)
    kernel = math.exp(-float((f[m] - y).square().sum()) / (2 * h**2)) / (h * math.sqrt(2 * math.pi)) ** D
    return math.log(float(s[m]) * kernel / (sum(mass) / len(mass)))


@given(seed=st.integers(0, 10**6), M=st.integers(1, 4), D=st.integers(1, 2), T=st.integers(1, 3), score=st.booleans())
def test_the_voronoi_density_in_the_units_of_the_targets(seed, M, D, T, score):
    B, mean, scale = 3, (100.0, -3.0)[:D], (5.0, 0.02)[:D]
    task = Regression(D, score="ce" if score else None, mean=mean, scale=scale, bandwidth=0.7)
    outputs = random_outputs(seed, M, B, D + score)
    standardised = random_outputs(seed + 1, B, T, D)
    target = standardised * torch.tensor(scale) + torch.tensor(mean)
    target[0, 1:] = torch.nan  # the first example has one target
    found = task.log_density(outputs, target if T > 1 else target[:, 0])
    scores = outputs[:, :, -1].softmax(0) if score else torch.full((M, B), 1 / M)
    for b in range(B):
        rows = [standardised[b, t] for t in range(T) if not target[b, t].isnan().any()]
        each = [slow_voronoi(outputs[:, b, :D], scores[:, b], y, 0.7) - sum(map(math.log, scale)) for y in rows]
        assert float(found[b]) == pytest.approx(sum(each) / len(each), rel=1e-4, abs=1e-4)


@given(seed=st.integers(0, 10**6), M=st.integers(1, 4), D=st.integers(1, 2))
def test_a_calibrated_mixture_in_the_units_of_the_targets(seed, M, D):
    B, mean, scale = 3, (100.0, -3.0)[:D], (5.0, 0.02)[:D]
    spread = tuple(0.1 + 0.3 * m for m in range(M))
    factor = tuple(1.0 + m for m in range(M))
    task = Regression(D, score="ce", mean=mean, scale=scale, spread=spread, score_factor=factor)
    outputs, y = random_outputs(seed, M, B, D + 1), random_outputs(seed + 1, B, D)
    found = task.log_density(outputs, y * torch.tensor(scale) + torch.tensor(mean))
    raw = outputs[:, :, -1].softmax(0)
    for b in range(B):
        weights = [float(raw[m, b]) * factor[m] for m in range(M)]
        density = 0.0
        for m in range(M):
            p = weights[m] / sum(weights)
            for d in range(D):
                z = float(y[b, d] - outputs[m, b, d]) / spread[m]
                p *= math.exp(-(z**2) / 2) / (spread[m] * scale[d] * math.sqrt(2 * math.pi))
            density += p
        assert float(found[b]) == pytest.approx(math.log(density), rel=1e-4, abs=1e-4)
    assert task.scores(outputs).sum(0).tolist() == pytest.approx([1] * B)


@pytest.mark.parametrize("D", [1, 2])
@pytest.mark.parametrize("spread", [0.02, 0.3, 2.0])
def test_the_bandwidth_is_the_best_of_a_fine_grid(D, spread):
    generator = torch.Generator().manual_seed(D)
    f = torch.randn(3, 150, D, generator=generator)
    s = torch.rand(3, 150, generator=generator)
    s = s / s.sum(0)
    member = torch.randint(3, (150,), generator=generator)
    y = f[member, range(150)] + spread * torch.randn(150, D, generator=generator)
    weight = torch.rand(150, generator=generator)

    def nll(h):
        return -float((weight * voronoi_log_density(f, s, y, bandwidth=h)).sum() / weight.sum())

    found = fit_bandwidth(f, s, y, weight)
    low, high = map(math.log, BANDWIDTHS)
    grid = [math.exp(low + (high - low) * i / 400) for i in range(401)]
    assert nll(found) <= min(map(nll, grid)) + 1e-4


def test_the_mixture_has_the_weights_of_one_em_step():
    outputs = torch.tensor([[0.0, 1.0], [4.0, 1.0]]).view(2, 1, 2).expand(2, 100, 2)  # equal scores
    target = torch.cat([torch.randn(30, 1), 4 + 2 * torch.randn(70, 1)])
    task, rejection, density = calibrate(Regression(1, score="ce"), outputs.transpose(0, 1), target, density="mixture")
    first = torch.minimum(target.square(), (target - 4).square()).mean().sqrt()
    distance = torch.stack([target[:, 0], target[:, 0] - 4]).square()
    r = (-distance / (2 * first.square())).softmax(0)
    torch.testing.assert_close(task.scores(outputs)[:, 0], r.mean(1))
    assert task.spread == pytest.approx(((r * distance).sum(1) / r.sum(1)).sqrt().tolist(), rel=1e-4)
    assert rejection is None
    assert density.nll == pytest.approx(-float(task.log_density(outputs, target).mean()), rel=1e-4)
    assert (density.kernel, density.examples) == ("mixture", 100)


def test_calibration_replaces_an_earlier_one():
    outputs, target = random_outputs(0, 3, 50, 2).float(), random_outputs(1, 50, 1).float()
    task = Regression(1, score="bce")
    by_mixture, _, _ = calibrate(task, outputs.transpose(0, 1), target, density="mixture")
    again, _, _ = calibrate(by_mixture, outputs.transpose(0, 1), target)
    straight, _, _ = calibrate(task, outputs.transpose(0, 1), target)
    assert again == straight
    assert (again.spread, again.score_factor) == (None, None)


@pytest.mark.parametrize("kernel", ["voronoi", "mixture", "laplace"])
def test_answers_are_joined_and_sampled_in_the_units_of_the_targets(kernel):
    options = {"voronoi": {"bandwidth": 0.1}, "mixture": {"spread": (0.1, 0.1)}, "laplace": {"loss": "laplace"}}[kernel]
    task = Regression(2, mean=(10.0, 1000.0), scale=(2.0, 50.0), **options)
    outputs = random_outputs(0, 2, 6, task.outputs).float()
    outputs[:, :, 2:] = math.log(0.1)
    answer = RegressionAnswer.of(task, outputs)
    joined = RegressionAnswer.cat([RegressionAnswer.of(task, part) for part in outputs.split(4, dim=1)])
    assert torch.equal(joined.hypotheses, answer.hypotheses)
    assert torch.equal(joined.to("cpu").scores, answer.scores)
    drawn = answer.sample(2000, seed=1)
    assert torch.equal(drawn, joined.sample(2000, seed=1))
    near = ((drawn.unsqueeze(1) - answer.hypotheses) / torch.tensor([2.0, 50.0])).norm(dim=3).amin(1)
    assert float(near.quantile(0.99)) < (1.2 if kernel == "laplace" else 0.4)
    row = answer.row(3)
    assert row["hypotheses"] == answer.hypotheses[:, 3].tolist()
    assert row["mean"] == answer.mean[3].tolist()


def test_options_of_another_task_are_refused():
    outputs, target = random_outputs(0, 50, 3, 1).float(), random_outputs(1, 50, 1).float()
    for options in ({"coverage": 0.9}, {"max_error": 0.1}, {"temperature": True}):
        with pytest.raises(UsageError, match=f"option {next(iter(options))} does not apply to the task Regression"):
            calibrate(Regression(1), outputs, target, **options)
    with pytest.raises(UsageError, match="option density does not apply to the task Classification"):
        calibrate(Classification(2), torch.rand(5, 2), torch.zeros(5).long(), density="voronoi", coverage=0.5)
    with pytest.raises(UsageError, match="one of voronoi, mixture"):
        calibrate(Regression(1), outputs, target, density="kernel")
    with pytest.raises(UsageError, match="at least as many examples as hypotheses"):
        calibrate(Regression(1), outputs[:2], target[:2], density="mixture")

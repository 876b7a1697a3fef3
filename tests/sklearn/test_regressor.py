"""The regressor by scikit-learn's own checks, and by what they do not look at: hypotheses, scores, samples, units."""

import copy
import pickle
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_linnerud
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchmcl import DivergedError, SpecialistRegressor, UsageError
from torchmcl.sklearn.regressor import LEAST_BANDWIDTH
from torchmcl.tasks.regression import location

ANY = ("ie", "mcl", "smcl", "relaxed", "evolving", "annealed")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(0, 1, (80, 1))
SIGN = np.where(GENERATOR.uniform(size=80) < 0.25, -1.0, 1.0)
Y = 1000 + 50 * X[:, 0] * SIGN + GENERATOR.normal(0, 0.5, 80)  # 1000 - 50 x with probability 1/4, or 1000 + 50 x
BOTH = np.stack([Y, -Y / 1000], axis=1)


def small(method="annealed", **options):
    """One that learns quickly, with the same result every time."""
    return SpecialistRegressor(method, **{"members": 3, "epochs": 10, "random_state": 0} | options)


@pytest.fixture(scope="module")
def two_modes():
    return SpecialistRegressor(members=2, epochs=200, random_state=0).fit(X, Y)


@parametrize_with_checks(
    [SpecialistRegressor(), SpecialistRegressor("ie", members=2, loss="laplace", score_loss="mixture")]
)
def test_all_of_scikit_learns_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, a check would be skipped
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped: {skipped}")


def test_a_table():
    assert cross_val_score(SpecialistRegressor(random_state=0), *load_diabetes(return_X_y=True), cv=3).mean() > 0.35


def test_hypotheses_are_the_two_answers_and_the_mean_is_neither(two_modes):
    at = np.array([[1.0]])
    found, scores = two_modes.predict_hypotheses(at), two_modes.predict_scores(at)
    assert found.shape == (2, 1, 1)
    assert scores.shape == (2, 1)
    order = found[:, 0, 0].argsort()
    assert found[order, 0, 0] == pytest.approx([950, 1050], abs=3)
    assert scores[order, 0] == pytest.approx([0.25, 0.75], abs=0.12)
    assert two_modes.predict(at) == pytest.approx((scores[:, 0] * found[:, 0, 0]).sum())


def test_samples_have_the_modes_and_their_probabilities(two_modes):
    at = np.array([[1.0], [0.5]])
    drawn = two_modes.sample(at, 2000)
    assert drawn.shape == (2000, 2, 1)
    assert ((drawn[:, 0] < 1000).mean()) == pytest.approx(0.25, abs=0.12)
    spread = drawn[drawn[:, 0, 0] > 1000, 0, 0].std()
    assert spread == pytest.approx(two_modes.bandwidth_ * Y.std(), rel=0.1)
    assert np.array_equal(drawn, two_modes.sample(at, 2000))
    assert not np.array_equal(drawn, two_modes.sample(at, 2000, random_state=1))
    narrow = two_modes.sample(at, 50, bandwidth=1e-5)
    nearest = np.abs(narrow - two_modes.predict_hypotheses(at)[:, None]).min(0)
    assert nearest.max() < 0.01


@pytest.mark.parametrize(("loss", "distribution"), [("gaussian", stats.norm), ("laplace", stats.laplace)])
def test_samples_of_a_likelihood_follow_its_distribution(loss, distribution):
    one = small("ie", members=1, loss=loss).fit(X, BOTH)
    drawn = one.sample(X[:1], 3000)[:, 0]
    with torch.no_grad():
        output = one.ensemble_(one._prepare(X[:1]))
    task = one.method_.task
    for d in range(2):
        scale = float(task.scales(output)[0, 0, d])
        found = stats.kstest(drawn[:, d], distribution(float(task.hypotheses(output)[0, 0, d]), scale).cdf)
        assert found.pvalue > 0.001


@pytest.mark.parametrize("method", ANY)
def test_every_method(method):
    specialists = small(method, epochs=12).fit(X, BOTH)
    assert specialists.predict(X).shape == (80, 2)
    assert specialists.predict_hypotheses(X).shape == (3, 80, 2)
    assert specialists.predict_scores(X).sum(0) == pytest.approx(1)
    assert specialists.n_iter_ == 12


def test_amcl_scores_by_its_auxiliary_output():
    specialists = small("amcl", score_loss=None, method_options={"memory": False}).fit(X, Y)
    assert not np.allclose(specialists.predict_scores(X), 1 / 3)


def test_without_scores_the_mean_is_plain():
    specialists = small(score_loss=None).fit(X, Y)
    assert specialists.predict(X) == pytest.approx(specialists.predict_hypotheses(X).mean(0)[:, 0])


def test_several_targets_keep_their_units():
    body, exercise = load_linnerud(return_X_y=True)
    units, zero = np.array([100.0, 1.0, 1e-3]), np.array([0.0, 1e4, -1.0])
    plain, moved = small().fit(exercise, body), small().fit(exercise, body * units + zero)
    for name in ("predict", "predict_hypotheses", "sample"):
        found = getattr(plain, name)(exercise)
        assert getattr(moved, name)(exercise) == pytest.approx(found * units + zero, rel=1e-6)
    assert moved.bandwidth_ == pytest.approx(plain.bandwidth_)


def test_a_loss_of_ones_own():
    def distance(outputs, target, state):
        return ((location(outputs, target) - target).square().sum(-1) + 0.001).sqrt()

    assert small(loss=distance).fit(X, BOTH).predict(X).shape == (80, 2)


def test_images():
    images = GENERATOR.uniform(0, 255, (40, 1, 8, 8)).astype(np.float32)
    found = small(network="simple_cnn", network_options={"width": 4}, epochs=2).fit(images, images.mean((1, 2, 3)))
    assert found.predict(images).dtype == np.float32
    assert found.predict(images).shape == (40,)


def test_pipeline_and_grid_search():
    grid = {"specialistregressor__method": ["smcl", "annealed"], "specialistregressor__loss": ["squared", "gaussian"]}
    search = GridSearchCV(make_pipeline(PolynomialFeatures(), small()), grid, cv=2, error_score="raise").fit(X, Y)
    assert len(search.cv_results_["params"]) == 4


def test_feature_names_and_series():
    table, target = pd.DataFrame({"x": X[:, 0]}), pd.Series(Y)
    specialists = small().fit(table, target)
    assert specialists.feature_names_in_.tolist() == ["x"]
    assert np.array_equal(specialists.predict(table), small().fit(X, Y).predict(X))


def test_clones_are_unfitted_and_alike():
    original = small().fit(X, Y)
    other = clone(original)
    for name in ("predict", "predict_hypotheses", "predict_scores", "sample"):
        with pytest.raises(NotFittedError):
            getattr(other, name)(X)
    assert np.array_equal(other.fit(X, Y).predict(X), original.predict(X))


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_what_was_kept_goes_on(way):
    original = small(epochs=3).fit(X, Y)
    other = pickle.loads(pickle.dumps(original)) if way == "pickle" else copy.deepcopy(original)
    for specialists in (original, other):
        specialists.partial_fit(X, Y)
    assert np.array_equal(other.predict(X), original.predict(X))
    assert np.array_equal(other.sample(X, 2), original.sample(X, 2))


def test_so_many_calls_are_one_fit():
    whole, parts = small(epochs=7).fit(X, Y), small(epochs=7)
    for _ in range(7):
        parts.partial_fit(X, Y)
    assert parts.predict(X) == pytest.approx(whole.predict(X))
    assert parts.bandwidth_ == pytest.approx(whole.bandwidth_)


def test_a_stream_keeps_the_units_of_the_first_call():
    stream = small(epochs=20)
    for start in range(0, 80, 20):
        stream.partial_fit(X[start : start + 20], Y[start : start + 20])
    assert stream.method_.task.mean == pytest.approx([Y[:20].mean()])
    assert stream.partial_fit(X[:2], Y[:2]).n_iter_ == 5  # fewer examples than members


@pytest.mark.parametrize("loss", ["squared", "gaussian"])
def test_a_whole_weight_is_so_many_copies(loss):
    often = np.arange(80) % 4
    weighted = small(loss=loss).fit(X, BOTH, sample_weight=often)
    repeated = small(loss=loss, batch_size=256).fit(X.repeat(often, 0), BOTH.repeat(often, 0))
    assert weighted.predict(X) == pytest.approx(repeated.predict(X), abs=1e-6)
    assert weighted.bandwidth_ == pytest.approx(repeated.bandwidth_)


def test_what_weighs_more_is_predicted_more():
    low, high = (small("ie").fit(X, Y, sample_weight=np.where(SIGN > 0, w, 1)).predict(X).mean() for w in (0.05, 20))
    assert low < 1000 < high


def test_the_bandwidth_is_positive_if_the_fit_is_perfect():
    class Exact(torch.nn.Module):
        def __init__(self, outputs):
            super().__init__()
            self.zero = torch.nn.Parameter(torch.rand(1))

        def forward(self, x):
            return x + 0 * self.zero

    x = np.array([[-1.0], [1.0]] * 5)
    specialists = small("ie", network=Exact, score_loss=None, weight_decay=0.0).fit(x, 7 + 2 * x[:, 0])
    assert specialists.bandwidth_ == LEAST_BANDWIDTH
    assert specialists.sample(x, 3)[:, :, 0] == pytest.approx(np.stack([7 + 2 * x[:, 0]] * 3), abs=1e-4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: small().fit(X, np.where(X[:, 0] < 0.5, np.nan, Y)), "Input y contains NaN"),
        (lambda: small().fit(X, np.full(80, 3.0)), "Target 0 is 3 for all 80 training examples"),
        (lambda: small().fit(X, np.stack([Y, np.ones(80)], 1)), "Target 1 is 1 for all 80 training examples"),
        (lambda: small().fit(X[:2], Y[:2]), "Expected at least 3 training examples, one per member, got 2"),
        (lambda: small().partial_fit(X[:1], Y[:1]), "1 sample"),
        (lambda: small().partial_fit(X[:4], np.ones(4)), "Target 0 is 1 for all 4 training examples"),
        (lambda: small().fit(X, Y).partial_fit(X, BOTH), r"Expected y \(n\) as in the first call, got \(80, 2\)"),
        (lambda: small("mcl").partial_fit(X, Y), "mcl needs the complete training set. Use fit"),
        (lambda: small("cmcl").fit(X, Y), "Expected a task with class probabilities for cmcl"),
        (lambda: small("amcl").fit(X, Y), "Pass groups=… or memory=False"),
        (lambda: small(loss="squred").fit(X, Y), r"Did you mean 'squared'\?"),
        (lambda: small(score_loss="bec").fit(X, Y), r"Did you mean 'bce'\?"),
        (lambda: small(score_loss="mixture").fit(X, Y), "needs a likelihood"),
        (lambda: small(loss=lambda outputs, target, state: outputs).fit(X, Y), r"a floating point loss \(M, B\)"),
        (lambda: small().fit(X, Y).sample(X, 0), "at least 1 sample"),
        (lambda: small().fit(X, Y).sample(X, bandwidth=0.0), "Expected a bandwidth > 0"),
        (lambda: small(learning_rate=1e200, optimizer="sgd").fit(X, Y), "The loss is not finite"),
        (lambda: small().fit(X, np.array(["a", "b"] * 40)), "could not convert string"),
    ],
)
def test_one_clear_line(call, says):
    with pytest.raises((ValueError, DivergedError), match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_was_refused_is_not_fitted():
    specialists = small().fit(X, Y)
    with pytest.raises(UsageError):
        specialists.fit(X, np.ones(80))
    with pytest.raises(NotFittedError):
        specialists.predict(X)

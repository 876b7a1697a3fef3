"""The estimator by scikit-learn's own checks, and by what they do not look at."""

import copy
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from joined import estimator, in_two_processes
from outcomes import one_clear_line
from torchmcl import DivergedError, SpecialistClassifier, State, UsageError, methods
from torchmcl.ensemble import Ensemble
from torchmcl.tasks import combiners

X, Y = make_blobs(60, centers=3, cluster_std=1.0, random_state=0)
NAMED = np.array(["ant", "bee", "cat"])[Y]
PAGE = Path(__file__).parents[2] / "docs" / "scikit-learn.md"


def small(method="amcl", **options):
    """One that learns quickly, with the same result every time."""
    return SpecialistClassifier(method, **{"members": 3, "epochs": 10, "random_state": 0} | options)


@pytest.fixture(scope="module")
def digits():
    pixels, label = load_digits(return_X_y=True)
    return train_test_split(pixels, label, random_state=0, stratify=label)


@parametrize_with_checks([SpecialistClassifier(), SpecialistClassifier("ie", members=2, epochs=15)])
def test_all_of_scikit_learns_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, or without pandas, a check would be skipped
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped: {skipped}")


@pytest.mark.parametrize(("load", "least"), [(load_iris, 0.93), (load_wine, 0.95)])
def test_tables(load, least):
    scores = cross_val_score(SpecialistClassifier(random_state=0), *load(return_X_y=True), cv=3)
    assert scores.mean() > least


def test_digits_as_a_table(digits):
    x, x_test, y, y_test = digits
    specialists = SpecialistClassifier(epochs=10, random_state=0).fit(x, y)
    assert specialists.score(x_test, y_test) > 0.95
    flags = specialists.objective_.memory.flags
    assert flags.shape == (10, 5)
    assert (flags.sum(1) == 1).all()
    mine, aux = specialists.members_proba(x_test).argmax(2), 10
    owner = flags.int().argmax(1).numpy()[y_test]
    said = np.array([mine[m, i] for i, m in enumerate(owner)])
    assert (said == y_test).mean() > 0.9  # the owner of a class knows it
    assert np.mean([(mine[m] == aux)[owner != m].mean() for m in set(owner)]) > 0.9  # the others say "not mine"


def test_images(digits):
    x, x_test, y, y_test = digits
    build = {"network": "simple_cnn", "network_options": {"width": 4}, "members": 2, "epochs": 6, "random_state": 0}
    rows = SpecialistClassifier(shape=(1, 8, 8), **build).fit(x, y)
    assert rows.score(x_test, y_test) > 0.9
    assert rows.n_features_in_ == 64
    assert type(rows.ensemble_.exchange).__name__ == "FeatureFusion"
    images = SpecialistClassifier(**build).fit(x.reshape(-1, 1, 8, 8), y)
    same = images.predict_proba(x_test.reshape(-1, 1, 8, 8))
    assert np.array_equal(same, rows.predict_proba(x_test))
    assert same.dtype == np.float32


def test_a_network_of_ones_own():
    def network(outputs):
        return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, outputs))

    specialists = small("ie", network=network, members=2, epochs=30).fit(X, NAMED)
    assert specialists.score(X, NAMED) > 0.8
    both = small("ie", network=[network, lambda outputs: torch.nn.Linear(2, outputs)], members=2).fit(X, NAMED)
    assert [sum(p.numel() for p in body.parameters()) for body in both.ensemble_.bodies] == [99, 9]


def test_members_and_ensemble_agree():
    specialists = small().fit(X, NAMED)
    members = specialists.members_proba(X)
    assert members.shape == (3, 60, 4)
    assert members.sum(2) == pytest.approx(1)
    together = combiners.drop_auxiliary(torch.from_numpy(members).log()).numpy()
    assert specialists.predict_proba(X) == pytest.approx(together)
    assert small("ie").fit(X, NAMED).members_proba(X).shape == (3, 60, 3)


def test_one_member_that_claims_an_example_is_enough():
    for k in (1, 2):
        specialists = small(k=k).fit(X, NAMED)
        claimed = specialists.predict_claims(X)
        assert claimed.dtype == bool
        assert claimed.tolist() == (specialists.members_proba(X)[:, :, -1] < 0.5).any(0).tolist()
    assert small("ie").fit(X, NAMED).predict_claims(X).all()  # no auxiliary class


@pytest.mark.parametrize("method", methods.names())
def test_every_method(method):
    specialists = small(method, epochs=12).fit(X, NAMED)
    assert specialists.predict_proba(X).shape == (60, 3)
    assert set(specialists.predict(X)) <= {"ant", "bee", "cat"}
    assert specialists.n_iter_ == 12


def test_labels_and_features_have_names():
    table = pd.DataFrame(X, columns=["height", "width"])
    specialists = small(epochs=40).fit(table, NAMED)
    assert specialists.classes_.tolist() == ["ant", "bee", "cat"]
    assert specialists.feature_names_in_.tolist() == ["height", "width"]
    assert specialists.score(table, NAMED) > 0.8
    with pytest.raises(ValueError, match="feature names"):
        specialists.predict(table[["width", "height"]])


def test_pipeline_and_grid_search():
    pipeline = make_pipeline(PolynomialFeatures(), small())
    grid = {"specialistclassifier__method": ["amcl", "cmcl"], "specialistclassifier__k": np.arange(1, 3)}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, NAMED)
    assert search.best_score_ > 0.7
    assert len(search.cv_results_["params"]) == 4


@pytest.mark.slow
def test_two_processes():
    def scores(jobs):
        return cross_val_score(small(), X, NAMED, cv=2, n_jobs=jobs, error_score="raise")

    assert scores(2) == pytest.approx(scores(1))


def test_threads():
    with joblib.parallel_backend("threading", n_jobs=2):
        together = cross_val_score(small(), X, NAMED, cv=2, error_score="raise")
    assert together == pytest.approx(cross_val_score(small(), X, NAMED, cv=2))


def test_clones_are_unfitted_and_alike():
    original = small(network_options={"width": 8}).fit(X, NAMED)
    other = clone(original)
    with pytest.raises(NotFittedError):
        other.predict(X)
    assert np.array_equal(other.fit(X, NAMED).predict_proba(X), original.predict_proba(X))


@pytest.mark.parametrize("way", ["pickle", "joblib", "deepcopy"])
def test_what_was_kept_goes_on(way, tmp_path):
    """It answers the same, and learns on from the same place: weights, memory, moments of the optimiser."""
    original = small(epochs=3).fit(X, NAMED)
    if way == "pickle":
        other = pickle.loads(pickle.dumps(original))
    elif way == "joblib":
        joblib.dump(original, tmp_path / "specialists.joblib")
        other = joblib.load(tmp_path / "specialists.joblib")
    else:
        other = copy.deepcopy(original)
    assert np.array_equal(other.predict_proba(X), original.predict_proba(X))
    for specialists in (original, other):
        for _ in range(4):  # into the memory-based phase
            specialists.partial_fit(X, NAMED)
    assert np.array_equal(other.predict_proba(X), original.predict_proba(X))
    assert other.objective_.memory.fixed
    assert original.n_iter_ == other.n_iter_ == 7


def test_the_seed_decides():
    first = small().fit(X, NAMED).predict_proba(X)
    assert np.array_equal(small().fit(X, NAMED).predict_proba(X), first)
    assert not np.array_equal(small(random_state=1).fit(X, NAMED).predict_proba(X), first)
    generator = np.random.RandomState(0)
    one, two = (small(random_state=generator).fit(X, NAMED).predict_proba(X) for _ in range(2))
    assert not np.array_equal(one, two)


def test_the_callers_randomness_is_left_alone():
    before, numpys = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    small("cmcl", exchange="feature_sharing").fit(X, NAMED).predict(X)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpys)  # noqa: NPY002


def test_signals_are_left_to_the_caller():
    seen = []

    def network(outputs):
        layer = torch.nn.Linear(2, outputs)
        layer.register_forward_hook(lambda *_: seen.append(signal.getsignal(signal.SIGINT)))
        return layer

    before = signal.getsignal(signal.SIGINT)
    small("ie", network=network, epochs=1).fit(X, NAMED)
    assert set(seen) == {before}


def test_no_lightning_is_needed():
    """It takes seconds to import, and would look for a cluster; here there seems to be one that does not fit."""
    code = (
        "import sys; from sklearn.datasets import load_iris; from torchmcl import SpecialistClassifier\n"
        "SpecialistClassifier('ie', members=2, epochs=1).fit(*load_iris(return_X_y=True))\n"
        "assert 'torchmcl.training.loop' in sys.modules and 'lightning' not in sys.modules"
    )
    slurm = {"SLURM_NTASKS": "4", "SLURM_JOB_NAME": "mine", "SLURM_NTASKS_PER_NODE": "4", "SLURM_PROCID": "3"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **slurm})


def test_processes_that_know_each_other_do_not_train_together():
    """One of them may even train longer: they would wait for each other, or share a memory."""
    for found, expected in zip(in_two_processes(estimator), (estimator(0), estimator(1)), strict=True):
        torch.testing.assert_close(found, expected)


def test_divergence_says_what_can_be_done():
    with pytest.raises(DivergedError, match=r"in epoch \d. Lower learning_rate \(now 1e\+200\).$"):
        small(learning_rate=1e200, optimizer="sgd").fit(X, Y)


def test_the_optimiser_stays_the_one_that_it_began_with():
    one, other = (small(epochs=3).fit(X, Y) for _ in range(2))
    other.set_params(optimizer="sgd")
    assert np.array_equal(other.partial_fit(X, Y).predict_proba(X), one.partial_fit(X, Y).predict_proba(X))


def test_what_is_kept_does_not_grow_with_the_epochs():
    stream = small(epochs=5)
    sizes = [len(pickle.dumps(stream.partial_fit(X, Y, classes=[0, 1, 2]))) for _ in range(12)]
    assert max(sizes) < min(sizes) + 2000


def test_computes_in_the_precision_of_the_table():
    for precision in (np.float32, np.float64):
        assert small(epochs=2).fit(X.astype(precision), Y).predict_proba(X).dtype == precision


def test_standardises():
    scale, shift = np.array([1e3, 1e-3]), np.array([5.0, -7.0])
    plain, moved = small().fit(X, Y), small().fit(X * scale + shift, Y)
    assert moved.predict_proba(X * scale + shift) == pytest.approx(plain.predict_proba(X), abs=1e-6)
    raw = small(standardize=False).fit(X, Y)
    assert not np.allclose(raw.predict_proba(X), plain.predict_proba(X), atol=1e-3)
    own = (X - X.mean(0)) / X.std(0)
    assert small(standardize=False).fit(own, Y).predict_proba(own) == pytest.approx(plain.predict_proba(X))


# Weights.


@pytest.mark.parametrize("method", [name for name in methods.names() if name not in ("vmcl", "one")])
def test_a_whole_weight_is_so_many_copies(method):
    """But for vMCL and ONE, whose gates draw batch statistics."""
    often = np.arange(60) % 4
    order = np.random.default_rng(0).permutation(60)
    weighted = small(method).fit(X[order], NAMED[order], sample_weight=often[order])
    repeated = small(method, batch_size=256).fit(X.repeat(often, 0), NAMED.repeat(often))
    assert weighted.predict_proba(X) == pytest.approx(repeated.predict_proba(X), abs=1e-9)


def test_weights_by_a_loop_of_ones_own():
    """Full batches, so that a training is a few lines: eq. 5 of Kim et al. with each example's cost weighted."""
    often = np.random.default_rng(0).uniform(0.1, 3, 60)
    options = {"optimizer": "sgd", "standardize": False, "weight_decay": 0.0, "method_options": {"warmup": 5}}
    fitted = small(epochs=6, **options).fit(X, Y, sample_weight=often)
    method = methods.build("amcl", 3, 3)
    ensemble = Ensemble.build(method, "mlp", inputs=2, width=64, exchange="none", seed=fitted._seed).double()
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    x, y, s = torch.tensor(X), torch.tensor(Y), torch.tensor(often)
    counts = torch.zeros(3, 3)
    for epoch in range(1, 7):
        log_p = ensemble(x).logits.log_softmax(2)
        take, beta = -log_p[:, torch.arange(60), y], 0.01 if epoch <= 5 else 0.5
        leave = -beta * log_p[:, :, -1]
        if epoch <= 5:
            owner = (take - leave).argmin(0)
            for b in range(60):
                counts[y[b], owner[b]] += s[b]
        else:
            owner = counts.argmax(1)[y]
        loss = sum(s[b] * sum((take if m == owner[b] else leave)[m, b] for m in range(3)) for b in range(60)) / s.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert fitted.predict_proba(X) == pytest.approx(method.combine(ensemble(x)).detach().numpy())
    assert torch.allclose(fitted.objective_.memory.counts.float(), counts)
    assert fitted.objective_(ensemble(x), y, State(7)).weights.shape == (3, 60)


def test_only_the_proportions_of_weights_matter_in_small_batches_too():
    often = np.random.default_rng(0).uniform(0.1, 3, 60)
    one, ten = (small(batch_size=16).fit(X, Y, sample_weight=scale * often).predict_proba(X) for scale in (1, 8))
    assert one == pytest.approx(ten, abs=1e-9)
    even = small(batch_size=16).fit(X, Y, sample_weight=np.ones(60)).predict_proba(X)
    assert even == pytest.approx(small(batch_size=16).fit(X, Y).predict_proba(X), abs=1e-9)


def test_what_weighs_more_is_predicted_more():
    rng = np.random.default_rng(0)
    x, y = np.r_[rng.normal(0, 1, 300), rng.normal(1, 1, 300)][:, None], np.repeat([0, 1], 300)
    share = [small("ie").fit(x, y, sample_weight=np.where(y, w, 1.0)).predict(x).mean() for w in (0.1, 1, 10)]
    assert share[0] < 0.3 < share[1] < 0.7 < share[2]


@pytest.mark.parametrize(
    ("weight", "says"),
    [
        (np.zeros(60), "not all zero"),
        (np.full(60, -1.0), "Expected non-negative weights"),
        (np.full(60, np.nan), "NaN"),
        (np.ones(59), "inconsistent"),
        (np.where(Y == 1, 1.0, 0.0), "at least 2 classes"),
    ],
)
def test_bad_weights(weight, says):
    with pytest.raises(ValueError, match=says):
        small().fit(X, Y, sample_weight=weight)


# Bit by bit.


def test_so_many_calls_are_one_fit():
    for batch_size in (128, 16):
        whole, parts = (small(epochs=7, batch_size=batch_size) for _ in range(2))
        whole.fit(X, NAMED)
        for _ in range(7):
            parts.partial_fit(X, NAMED, classes=["cat", "bee", "ant"])
        assert parts.predict_proba(X) == pytest.approx(whole.predict_proba(X), abs=1e-9)
        assert parts.objective_.memory.fixed


def test_one_epoch_is_all_warm_up():
    with pytest.warns(UserWarning, match="Training ends before amcl reaches its final phase"):
        small(epochs=1).fit(X, Y)
    assert small(epochs=2).fit(X, Y).objective_.memory.fixed


def test_a_stream():
    stream = small(members=2, epochs=25, method_options={"warmup": 20})
    for _ in range(5):
        for start in range(0, 60, 12):
            stream.partial_fit(X[start : start + 12], NAMED[start : start + 12], classes=["ant", "bee", "cat"])
    assert stream.n_iter_ == 25
    assert stream.score(X, NAMED) > 0.8
    assert stream._scaler.mean_ == pytest.approx(X.mean(0))


def test_learning_goes_on_after_fit_and_fit_begins_anew():
    specialists = small().fit(X, NAMED)
    before = specialists.predict_proba(X)
    specialists.partial_fit(X, NAMED, sample_weight=np.ones(60))
    assert not np.allclose(specialists.predict_proba(X), before)
    assert np.array_equal(specialists.fit(X, NAMED).predict_proba(X), before)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: small().partial_fit(X, NAMED), "The first call to partial_fit needs all labels"),
        (lambda: small().fit(X, NAMED).partial_fit(X, NAMED, classes=["ant", "bee"]), "classes of the first call"),
        (lambda: small().fit(X, NAMED).partial_fit(X, np.where(Y, "ant", "dog")), "got 'dog'"),
        (lambda: small().partial_fit(X, NAMED, classes=["ant", "bee"]), "got 'cat'"),
        (lambda: small("mcl").partial_fit(X, Y, classes=[0, 1, 2]), "mcl needs the complete training set. Use fit"),
        (lambda: small("mcl_kd").fit(X, Y).partial_fit(X, Y), "mcl_kd needs the complete training set. Use fit"),
        (lambda: small("amlc").fit(X, Y), r"Did you mean 'amcl'\?"),
        (lambda: small(k=4).fit(X, Y), "1 <= k <= 3 members"),
        (lambda: small(method_options={"alpha": 1}).fit(X, Y), "amcl has no option alpha"),
        (lambda: small(network_options={"wide": 1}).fit(X, Y), "Unknown option wide for mlp"),
        (lambda: small(network="simple_cnn").fit(X, Y), "Expected images"),
        (lambda: small(optimizer="adamm").fit(X, Y), "kind of optimizer"),
        (lambda: small(epochs=0).fit(X, Y), "Expected epochs >= 1"),
        (lambda: small(device="cuda:99").fit(X, Y), "Cannot use the device"),
        (lambda: small(device="abacus").fit(X, Y), "Cannot use the device"),
        (lambda: small(device="meta").fit(X, Y), "Cannot use the device"),
        (lambda: small(shape=(3, 2, 2)).fit(X, Y), r"shape \(3, 2, 2\) or flattened, got shape \(2,\)"),
        (lambda: small(learning_rate=1e200, optimizer="sgd").fit(X, Y), "The loss is not finite"),
        (lambda: small().fit(X, np.zeros(60)), "at least 2 classes, got 1 class"),
    ],
)
def test_one_clear_line(call, says):
    with pytest.raises((ValueError, DivergedError), match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [{"learning_rate": 1e200, "optimizer": "sgd"}, {"shape": (3, 2, 2)}, {"k": 9}])
def test_what_was_refused_is_not_fitted(wrong):
    specialists = small().fit(X, Y).set_params(**wrong)
    with pytest.raises((UsageError, DivergedError)) as caught:
        specialists.fit(X, Y)
    one_clear_line(str(caught.value))
    with pytest.raises(NotFittedError):
        specialists.predict(X)


def test_the_page():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 3
    names = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)


def test_class_weight_makes_a_rare_class_count():
    generator = np.random.RandomState(0)
    X = np.concatenate([generator.normal(0, 1, (200, 2)), generator.normal(1.2, 1, (10, 2))])
    y = np.array(["common"] * 200 + ["rare"] * 10)
    found = {}
    for weight in (None, "balanced", {"common": 210 / 400, "rare": 210 / 20}):
        fitted = SpecialistClassifier("ie", 2, epochs=20, class_weight=weight, random_state=0).fit(X, y)
        found[str(weight)] = (fitted.predict(X)[200:] == "rare").mean()
    plain, balanced, given = found.values()
    assert balanced > plain + 0.2
    assert given == balanced


def test_class_weights_in_partial_fit():
    X, y = np.random.RandomState(0).normal(size=(20, 2)), np.arange(20) % 2
    with pytest.raises(ValueError, match=r"class_weight to be \{label: weight\} for partial_fit"):
        SpecialistClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])
    SpecialistClassifier(class_weight={0: 1.0, 1: 2.0}, epochs=3).partial_fit(X, y, classes=[0, 1])

"""What a threshold promises, on any confidences; temperature against a grid; kept with the model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from outcomes import one_clear_line
from torchmcl import UsageError, data, methods
from torchmcl.data import Loader
from torchmcl.inference.calibrate import calibrate as calibrate_task
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.rejection import (
    apply_temperature,
    calibrate,
    fit_temperature,
    threshold_for_coverage,
    threshold_for_error,
)
from torchmcl.metrics import nll
from torchmcl.structures.rejection import Rejection

# Few values, for ties; neighbours in float32, between which there is no middle; and any number.
one_confidence = st.one_of(
    st.integers(0, 4).map(lambda n: n / 4),
    st.sampled_from([float(np.float32(0.5)), float(np.nextafter(np.float32(0.5), np.float32(1)))]),
    st.floats(0, 1, width=32),
)
examples = st.lists(st.tuples(one_confidence, st.booleans()), min_size=1, max_size=30)


def split(examples):
    return torch.tensor([c for c, _ in examples]), torch.tensor([w for _, w in examples])


@given(examples=examples, coverage=st.floats(0.01, 1))
def test_coverage_is_reached_and_no_more_than_needed(examples, coverage):
    confidence, _ = split(examples)
    threshold = threshold_for_coverage(confidence, coverage)
    accepted = confidence >= threshold
    assert accepted.float().mean() >= coverage - 1e-6
    fewer = accepted & (confidence > confidence[accepted].min())
    assert fewer.float().mean() < coverage
    if coverage == 1:
        assert threshold == 0


@given(examples=examples, max_error=st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 0.9]))
def test_max_error_is_kept_by_as_many_as_possible(examples, max_error):
    confidence, wrong = split(examples)
    cuts = {float(c): float(wrong[confidence >= c].float().mean()) for c in confidence}
    possible = [int((confidence >= c).sum()) for c, error in cuts.items() if error <= max_error + 1e-6]
    if not possible:
        with pytest.raises(UsageError, match="The lowest possible error, "):
            threshold_for_error(confidence, wrong, max_error)
        return
    accepted = confidence >= threshold_for_error(confidence, wrong, max_error)
    assert wrong[accepted].float().mean() <= max_error + 1e-6
    assert accepted.sum() == max(possible)


@given(seed=st.integers(0, 10_000), scale=st.floats(0.2, 5))
def test_a_temperature_changes_no_label_and_is_the_most_likely(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(200, 4, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]  # the truth is at temperature 1
    probabilities = (logits * scale).softmax(1)
    T = fit_temperature(probabilities, target)

    def loss(t):  # -log of the posterior, per example
        return float(nll(apply_temperature(probabilities, t), target)) + np.log(t) ** 2 / (2 * 0.5**2 * 200)

    assert all(loss(T) <= loss(t) + 1e-5 for t in np.geomspace(0.05, 20, 60))
    assert torch.equal(apply_temperature(probabilities, T).argmax(1), probabilities.argmax(1))
    assert pytest.approx(scale, rel=0.5) == T


def test_validation_examples_without_an_error_do_not_make_the_ensemble_certain():
    sure = torch.tensor([[0.97, 0.03]])
    validation, correct = sure.repeat(150, 1), torch.zeros(150, dtype=torch.int64)
    T = fit_temperature(validation, correct)
    assert 0.4 < T < 1
    test = sure.repeat(100, 1)
    target = torch.tensor([0] * 98 + [1] * 2)  # slightly worse than on the validation examples
    at_the_bound = float(nll(apply_temperature(test, 0.05), target))
    assert float(nll(apply_temperature(test, T), target)) < 0.2 * at_the_bound
    assert fit_temperature(sure.repeat(15_000, 1), torch.zeros(15_000, dtype=torch.int64)) < T  # more examples say more


def test_tempered_against_the_definition():
    p = torch.rand(6, 5, 3, 2, generator=torch.Generator().manual_seed(0)).softmax(1)
    for T in (0.5, 1, 3):
        expected = p ** (1 / T) / (p ** (1 / T)).sum(1, keepdim=True)
        torch.testing.assert_close(apply_temperature(p, T), expected)
    certain = apply_temperature(torch.tensor([[1.0, 0.0]]), 2.0)
    assert certain.isfinite().all()
    assert certain[0, 1] < 1e-6


def test_without_a_number_nothing_is_accepted():
    assert not Rejection().accepts(torch.tensor([float("nan")]))[0]


def test_pixels_count_by_their_image():
    sure = torch.tensor([[0.9, 0.1], [0.1, 0.9]])  # class by pixel
    unsure = torch.tensor([[0.6, 0.6], [0.4, 0.4]])
    found = calibrate(torch.stack([sure, unsure]), torch.tensor([[0, 1], [1, 1]]), max_error=0.0)
    assert found.coverage == 0.5
    assert found.threshold == pytest.approx((0.9 + 0.6) / 2)


@pytest.mark.parametrize(
    "asked",
    [{}, {"coverage": 0.9, "max_error": 0.1}, {"coverage": 0.9, "max_error": 0.1, "temperature": True}]
    + [{"coverage": bad} for bad in (0, 1.1, -1, float("nan"))]
    + [{"max_error": bad} for bad in (-0.1, 1, float("nan"))],
)
def test_what_cannot_be_promised(asked):
    with pytest.raises(UsageError, match="Expected"):
        calibrate(torch.tensor([[0.9, 0.1]]), torch.tensor([0]), **asked)


@pytest.fixture(scope="module")
def held(digits_run):
    return data.load("digits", validation=0.1).validation


def test_calibrate_in_every_form(digits_run, held):
    x, y = held.images, held.target
    forms = (
        held,
        data.load("digits", validation=0.1),
        Loader(held, shuffle=False),
        (x, y),
        (x.numpy(), y.numpy()),
        DataLoader(TensorDataset(x, y), batch_size=50),
        TensorDataset(x, y),
        [(x[:9], y[:9]), (x[9:], y[9:])],
    )
    found = [Specialists.load(digits_run).calibrate(form, coverage=0.8) for form in forms]
    for each in found:
        assert each.threshold == pytest.approx(found[0].threshold, abs=1e-6)
        assert (each.coverage, each.error) == (found[0].coverage, found[0].error)
    assert found[0].coverage >= 0.8


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: x,
        lambda x, y: (x, y[:-1]),
        lambda x, y: (x[:-1], y),
        lambda x, y: (x, y + 1),
        lambda x, y: (x, y.float()),
        lambda x, y: [],
        lambda x, y: [x],
        lambda x, y: data.load("digits"),
        lambda x, y: data.load("digits", classes="1,2", validation=0.2),
        lambda x, y: list(Loader(data.load("digits").test)),
        lambda x, y: 3,
    ],
)
def test_calibrate_with_what_does_not_fit(form, digits_run, held):
    specialists = Specialists.load(digits_run)
    with pytest.raises(UsageError) as caught:
        specialists.calibrate(form(held.images, held.target), coverage=0.9)
    one_clear_line(str(caught.value))
    assert specialists.model_config.rejection == Rejection()


def test_accepted_follows_and_is_kept(digits_run, held, digits_test, tmp_path):
    specialists = Specialists.load(digits_run)
    before = specialists.predict(digits_test)
    found = specialists.calibrate(held, coverage=0.7, temperature=True)
    answer = specialists.predict(digits_test)
    assert found.temperature != 1
    assert torch.equal(answer.claimed, answer.claim >= found.claim_threshold)
    assert torch.equal(answer.accepted, (answer.confidence >= found.threshold) & answer.claimed)
    if not found.member_temperatures:
        assert torch.equal(answer.label, before.label)
        torch.testing.assert_close(answer.probabilities, apply_temperature(before.probabilities, found.temperature))
    assert 0 < answer.accepted.float().mean() < 1
    specialists.save(tmp_path)
    loaded = Specialists.load(tmp_path)
    assert loaded.model_config.rejection == found
    assert torch.equal(loaded.predict(digits_test).accepted, answer.accepted)
    assert loaded.calibrate(held, coverage=1).temperature == 1  # anew, not on top


@given(examples=examples, seed=st.integers(0, 99), coverage=st.floats(0.05, 1), more=st.floats(0, 1))
def test_thresholds_on_claim_and_confidence(examples, seed, coverage, more):
    """Against counting: enough are claimed and accepted, and no threshold could be higher."""
    confidence, wrong = split(examples)
    claim = torch.rand(len(examples), generator=torch.Generator().manual_seed(seed))
    target = wrong.long() if wrong.dtype == torch.bool else (wrong > 0).long()
    sure = 0.5 + confidence.clamp(0, 1) / 2
    p = torch.stack([sure, 1 - sure], dim=1)
    claim_coverage = coverage + more * (1 - coverage)
    found = calibrate(p, target, claim=claim, coverage=coverage, claim_coverage=claim_coverage)
    claimed = [c >= found.claim_threshold for c in claim.tolist()]
    assert sum(claimed) == math.ceil(claim_coverage * len(claim) - 1e-9)  # random claims have no ties
    accepted = [a and c >= found.threshold for a, c in zip(claimed, p.amax(1).tolist(), strict=True)]
    assert sum(accepted) / len(accepted) == pytest.approx(found.coverage)
    assert found.coverage >= coverage - 1e-6
    lowest = min(c for a, c in zip(accepted, p.amax(1).tolist(), strict=True) if a)
    fewer = sum(a and c > lowest for a, c in zip(accepted, p.amax(1).tolist(), strict=True))
    assert fewer / len(accepted) < coverage


def test_claims_are_used_only_where_they_exist_and_are_asked_for():
    p, y, claim = torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]), torch.tensor([0.9, 0.6])
    assert calibrate(p, y, coverage=1).claim_threshold is None
    assert calibrate(p, y, claim=claim, temperature=True).claim_threshold is None
    assert calibrate(p, y, claim=claim, max_error=0.5).claim_threshold == pytest.approx(0.3)
    assert calibrate(p, y, claim=claim, claim_coverage=0.5).claim_threshold == pytest.approx(0.75)
    assert calibrate(p, y, claim=claim, claim_coverage=0.5).coverage == 0.5
    with pytest.raises(UsageError, match="auxiliary class"):
        calibrate(p, y, claim_coverage=0.9)
    with pytest.raises(UsageError, match="claim_coverage >= coverage"):
        calibrate(p, y, claim=claim, coverage=0.9, claim_coverage=0.5)
    for bad in (0, 1.1, float("nan")):
        with pytest.raises(UsageError, match="0 < claim_coverage <= 1"):
            calibrate(p, y, claim=claim, claim_coverage=bad)


def test_ignored_pixels_set_no_claim_threshold():
    p = torch.full((2, 2, 3), 0.5)
    claim = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.6, 0.1]])
    target = torch.tensor([[0, 0, 255], [0, 0, 255]])
    found = calibrate(p, target, claim=claim, claim_coverage=1.0, ignore_index=255)
    assert found.claim_threshold == pytest.approx(0.3)
    half = calibrate(p, target, claim=claim, claim_coverage=0.5, ignore_index=255)
    assert half.claim_threshold == pytest.approx(0.75)
    assert half.coverage == 0.5  # two of three pixels of the first image are claimed, none of the second
    for asked in ({}, {"max_error": 0.9}):  # one of four pixels of the images, of two each
        with pytest.raises(UsageError, match=r"Less than half of the pixels .* Raise claim_coverage"):
            calibrate(p, target, claim=claim, claim_coverage=0.1, ignore_index=255, **asked)


def test_unclaimed_validation_examples_are_reported(caplog):
    method = methods.build("amcl", 2, 2)
    logits = torch.zeros(100, 2, 3)
    for unclaimed, said in ((5, False), (6, True)):
        logits[:, 0] = torch.tensor([4.0, 0.0, 0.0])
        logits[:unclaimed, 0, 2] = 9.0
        logits[:, 1, 2] = 9.0
        caplog.clear()
        calibrate_task(method.task, logits, torch.zeros(100).long(), method=method, coverage=0.9)
        assert ("No member claims 6.0 %" in caplog.text) == said


def test_on_digits_rejection_helps(digits_run, held, digits_test):
    specialists = Specialists.load(digits_run)
    specialists.calibrate(held, coverage=0.9)
    answer = specialists.predict(digits_test)
    wrong = answer.label != digits_test.target
    assert wrong[answer.accepted].float().mean() < wrong.float().mean()
    assert abs(float(answer.accepted.float().mean()) - 0.9) < 0.1

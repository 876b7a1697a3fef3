"""Scores against slow loops over the formulas, their one sign, and their place in the combined answer."""

from math import exp, log

import pytest
import torch

from torchmcl import EnsembleOutput, UsageError, methods
from torchmcl.inference import unseen_scores

GENERATOR = torch.Generator().manual_seed(0)


def scores(name, *, pixels=(), members=4, classes=3, k=1):
    method = methods.build(name, members, classes, k=k)
    logits = 2 * torch.randn(members, 5, method.outputs, *pixels, generator=GENERATOR)
    gate = torch.rand(members, 5, generator=GENERATOR).softmax(0) if method.composition.gate else None
    output = EnsembleOutput(logits, gate)
    return output, unseen_scores.MemberScores.of(output, method.combine(output), method)


def softmax(values):
    top = max(values)
    return [exp(v - top) / sum(exp(w - top) for w in values) for v in values]


def entropy(p):
    return -sum(x * log(x) for x in p if x > 0)


def slow(logits, gate, combined, auxiliary, k):
    """All scores of one example from plain lists: logits of each member, gate of each member or None."""
    outputs = [softmax(member) for member in logits]
    real = len(combined)
    reals = [member[:real] for member in logits]
    found = {
        "max_probability": 1 - max(combined),
        "entropy": entropy(combined),
        "max_logit": -sum(max(member[:real]) for member in logits) / len(logits),
        "claim_energy": min(-log(sum(exp(z) for z in member[:real])) for member in logits),
        "variation_ratio": 1 - max(map([m.index(max(m)) for m in reals].count, range(real))) / len(logits),
        "energy": -sum(log(sum(exp(z) for z in member[:real])) for member in logits) / len(logits),
    }
    weights = [1 / len(logits)] * len(logits) if gate is None else gate
    own = outputs
    if auxiliary:
        last = sorted(p[-1] for p in outputs)
        found |= {"smallest_auxiliary": last[0], "kth_auxiliary": last[k - 1], "mean_auxiliary": sum(last) / len(last)}
        claims = [1 - p[-1] for p in outputs]
        weights = [claim / sum(claims) for claim in claims]
        own = [[x / claim for x in p[:real]] for p, claim in zip(outputs, claims, strict=True)]
    mixture = [sum(w * p[c] for w, p in zip(weights, own, strict=True)) for c in range(real)]
    doubt = sum(w * entropy(p) for w, p in zip(weights, own, strict=True))
    return found | {"mutual_information": entropy(mixture) - doubt}


@pytest.mark.parametrize(("name", "k"), [("ie", 1), ("cmcl", 2), ("vmcl", 1), ("one", 1), ("amcl", 1), ("amcl", 3)])
def test_against_the_formulas(name, k):
    output, said = scores(name, k=k)
    found = unseen_scores.compute(said)
    for b in range(5):
        gate = None if output.gate is None else output.gate[:, b].tolist()
        expected = slow(output.logits[:, b].tolist(), gate, said.combined[b].tolist(), name == "amcl", k)
        assert found.keys() == expected.keys()
        for score, value in expected.items():
            assert float(found[score][b]) == pytest.approx(value, abs=1e-5), score


@pytest.mark.parametrize("name", ["ie", "vmcl", "amcl"])
def test_an_image_scores_the_mean_of_its_pixels(name):
    output, said = scores(name, pixels=(2, 3))
    whole = unseen_scores.compute(said)
    for h in range(2):
        for w in range(3):
            pixel = EnsembleOutput(output.logits[..., h, w], output.gate)
            method = methods.build(name, 4, 3)
            part = unseen_scores.compute(unseen_scores.MemberScores.of(pixel, said.combined[..., h, w], method))
            whole = {score: value - part[score] / 6 for score, value in whole.items()}
    for value in whole.values():
        torch.testing.assert_close(value, torch.zeros(5), atol=1e-5, rtol=0)


def test_the_weights_make_the_combined_answer():
    for name in ("ie", "cmcl", "vmcl", "amcl"):
        _, said = scores(name)
        torch.testing.assert_close((said.weights[:, :, None] * said.members).sum(0), said.combined)


@pytest.mark.parametrize("name", ["ie", "amcl"])
def test_higher_is_more_foreign(name):
    """An example that one member claims and knows, against one that nobody does, in every score."""
    method = methods.build(name, 2, 3)
    known = torch.tensor([[9.0, 0, 0, 0], [0, 0, 0, 9.0]] if name == "amcl" else [[9.0, 0, 0], [9.0, 0, 0]])
    foreign = torch.tensor([[1.0, 0, 0, 2.0], [0, 1.0, 0, 2.0]] if name == "amcl" else [[1.0, 0, 0], [0, 1.0, 0]])
    output = EnsembleOutput(torch.stack([known, foreign], dim=1))
    for score, value in unseen_scores.compute(
        unseen_scores.MemberScores.of(output, method.combine(output), method)
    ).items():
        assert value[1] > value[0] + 1e-4, score


def test_everyone_certain_that_it_is_not_theirs_stays_a_number():
    method = methods.build("amcl", 2, 3)
    output = EnsembleOutput(torch.tensor([[[0.0, 0, 0, 1e4]], [[0.0, 5, 0, 1e4]]]))
    for value in unseen_scores.compute(unseen_scores.MemberScores.of(output, method.combine(output), method)).values():
        assert value.isfinite().all()


def test_without_an_auxiliary_class_there_is_no_auxiliary_score():
    _, said = scores("ie")
    assert not any("auxiliary" in name for name in unseen_scores.compute(said))
    with pytest.raises(UsageError, match="auxiliary class"):
        unseen_scores.smallest_auxiliary(said)

"""Scores on features against slow loops, and one interface for all scores."""

from math import exp, log, sqrt

import pytest
import torch

from torchmcl import UsageError, methods
from torchmcl.inference import feature_scores, unseen_scores

GENERATOR = torch.Generator().manual_seed(0)


def outputs(examples, name="ie"):
    method = methods.build(name, 3, 2)
    logits = 2 * torch.randn(3, examples, method.outputs, generator=GENERATOR)
    return unseen_scores.MemberScores.of(logits, method.combine(logits), method)


def features(examples, D=4):
    return torch.randn(examples, D, generator=GENERATOR).double()


def distance(a, b):
    return sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("k", [1, 5, 99])
def test_nearest_neighbours(k):
    train, test = features(20), features(6)
    found = feature_scores.NearestNeighbours(k).fit(train, outputs(20)).score(test, outputs(6))

    def unit(row):
        return [x / distance(row, [0] * 4) for x in row]

    for b in range(6):
        distances = sorted(distance(unit(test[b].tolist()), unit(row)) for row in train.tolist())
        assert float(found[b]) == pytest.approx(distances[min(k, 20) - 1])


def test_mahalanobis():
    train, test, said = features(40), features(6), outputs(40)
    score = feature_scores.Mahalanobis().fit(train, said)
    found = score.score(test, outputs(6))
    label = said.combined.argmax(1).tolist()
    means = {c: torch.stack([row for row, y in zip(train, label, strict=True) if y == c]).mean(0) for c in set(label)}
    centred = [row - means[y] for row, y in zip(train, label, strict=True)]
    empirical = sum(torch.outer(row, row) for row in centred) / 40
    mu = float(empirical.trace()) / 4
    # The shrinkage of Ledoit & Wolf (2004), lemma 3.2 and section 3.3.
    d2 = float((empirical - mu * torch.eye(4)).square().sum()) / 4
    b2 = sum(float((torch.outer(row, row) - empirical).square().sum()) / 4 for row in centred) / 40**2
    shrinkage = min(b2, d2) / d2
    inverse = torch.linalg.inv((1 - shrinkage) * empirical + shrinkage * mu * torch.eye(4))
    for b in range(6):
        each = [float((test[b] - mean) @ inverse @ (test[b] - mean)) for mean in means.values()]
        assert float(found[b]) == pytest.approx(min(each), rel=1e-6)


@pytest.mark.parametrize("name", ["ie", "amcl"])
def test_the_virtual_logit(name):
    train, test, said, asked = features(30), features(6), outputs(30, name), outputs(6, name)
    found = feature_scores.VirtualLogit(2).fit(train, said).score(test, asked)
    centre = train.mean(0)
    _, vectors = torch.linalg.eigh((train - centre).T @ (train - centre))
    minor = vectors[:, :2]  # eigenvalues ascend

    def residual(row):
        return float(((row - centre) @ minor).norm())

    largest = sum(float(said.logits[m, n].max()) for m in range(3) for n in range(30)) / 90
    alpha = largest / (sum(map(residual, train)) / 30)
    for b in range(6):
        energy = -sum(log(sum(exp(float(z)) for z in asked.logits[m, b])) for m in range(3)) / 3
        assert float(found[b]) == pytest.approx(alpha * residual(test[b]) + energy, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", feature_scores.NAMES)
def test_one_interface(name):
    """Every score: built by name, fitted, one number per example, and higher for data that is far away."""
    method = methods.build("amcl", 2, 3)
    known = torch.tensor([[9.0, 0, 0, 0], [0, 0, 0, 9.0]])
    unseen = torch.tensor([[1.0, 0, 0, 2.0], [0, 1.0, 0, 2.0]])
    logits = torch.stack([known] * 30 + [unseen] * 10, dim=1)
    said = unseen_scores.MemberScores.of(logits, method.combine(logits), method)
    seen = logits[:, :30]
    trained = unseen_scores.MemberScores.of(seen, method.combine(seen), method)
    x = torch.randn(40, 6, generator=GENERATOR) * torch.tensor([1.0, 1, 1, 0.1, 0.1, 0.1]) + torch.tensor(
        [9.0] + [0] * 5
    )
    x[30:, 3:] += 20
    score = feature_scores.build(name)
    found = score.fit(x[:30] if score.needs_features else None, trained).score(
        x if score.needs_features else None, said
    )
    assert found.shape == (40,)
    assert float(found[30:].min()) > float(found[:30].max())


def test_what_cannot_be_scored():
    with pytest.raises(UsageError, match="Expected one of the scores"):
        feature_scores.build("distance")
    for name in feature_scores.FEATURE_SCORES:
        with pytest.raises(UsageError, match="Call fit"):
            feature_scores.build(name).score(features(2), outputs(2))
        for bad in (None, torch.zeros(3), torch.zeros(0, 4)):
            with pytest.raises(UsageError, match=r"Expected features \(B, D\)"):
                feature_scores.build(name).fit(bad, outputs(3))

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.testing import assert_close

from torchmcl import metrics

# Whole numbers: many ties, and scores beyond [0, 1], which a sigmoid in float32 would tie from 17 up.
scores = st.lists(st.integers(-50, 50), min_size=1, max_size=25)


def tensors(inlier: list[int], outlier: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(inlier, dtype=torch.float32), torch.tensor(outlier, dtype=torch.float32)


@given(inlier=scores, outlier=scores)
@settings(deadline=None, max_examples=80)
def test_against_the_definition(inlier: list[int], outlier: list[int]) -> None:
    won = sum((o > i) + (o == i) / 2 for i in inlier for o in outlier)
    precision_by_recall, candidates, before = 0.0, [], 0.0
    for threshold in sorted({*inlier, *outlier}, reverse=True):
        hits, false = sum(o >= threshold for o in outlier), sum(i >= threshold for i in inlier)
        recall = hits / len(outlier)
        precision_by_recall += (recall - before) * hits / (hits + false)
        before = recall
        if 100 * hits >= 95 * len(outlier):
            candidates.append(false / len(inlier))
    given_scores = tensors(inlier, outlier)
    assert_close(float(metrics.auroc(*given_scores)), won / len(inlier) / len(outlier), rtol=1e-5, atol=1e-6)
    assert_close(float(metrics.aupr(*given_scores)), precision_by_recall, rtol=1e-5, atol=1e-6)
    assert_close(float(metrics.fpr_at_95_tpr(*given_scores)), min(candidates), rtol=1e-5, atol=1e-6)


@given(inlier=scores, outlier=scores)
@settings(deadline=None, max_examples=40)
def test_against_scikit_learn(inlier: list[int], outlier: list[int]) -> None:
    label, score = [0] * len(inlier) + [1] * len(outlier), inlier + outlier
    given_scores = tensors(inlier, outlier)
    assert_close(float(metrics.auroc(*given_scores)), float(roc_auc_score(label, score)), rtol=1e-5, atol=1e-6)
    assert_close(float(metrics.aupr(*given_scores)), float(average_precision_score(label, score)), rtol=1e-5, atol=1e-6)


def test_known_cases() -> None:
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9])
    assert [float(f(low, high)) for f in (metrics.auroc, metrics.aupr, metrics.fpr_at_95_tpr)] == [1, 1, 0]
    assert [float(f(high, low)) for f in (metrics.auroc, metrics.fpr_at_95_tpr)] == [0, 1]
    assert [float(f(low, low)) for f in (metrics.auroc, metrics.fpr_at_95_tpr)] == [0.5, 1]
    inlier = torch.tensor([5.0, 0.0])
    assert metrics.fpr_at_95_tpr(inlier, torch.tensor([1.0] + [9.0] * 19)) == 0  # 19 of 20 are 95%
    assert metrics.fpr_at_95_tpr(inlier, torch.tensor([1.0] + [9.0] * 18)) == 0.5  # 18 of 19 are not


@pytest.mark.parametrize("function", [metrics.auroc, metrics.aupr, metrics.fpr_at_95_tpr])
def test_only_the_order_counts(function) -> None:
    inlier, outlier = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    assert_close(function(1000 * inlier, 1000 * outlier), function(inlier, outlier))
    infinite = torch.tensor([-torch.inf, torch.inf, torch.inf])
    assert_close(function(infinite, infinite), function(torch.tensor([0.0, 1, 1]), torch.tensor([0.0, 1, 1])))


def test_kinds_may_come_apart() -> None:
    metric = metrics.AUROC()
    metric.update(inlier=torch.tensor([1.0, 2.0]))
    metric.update(outlier=torch.tensor([2.0]))
    metric.update(torch.tensor([]), torch.tensor([9.0]))
    assert metric.compute() == metrics.auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 9.0]))

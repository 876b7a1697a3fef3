from itertools import pairwise, permutations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from torchmcl import metrics

examples = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)


@given(examples=examples)
@settings(deadline=None, max_examples=60)
def test_against_every_order_of_the_ties(examples: list[tuple[int, bool]]) -> None:
    B = len(examples)
    orders = [order for order in permutations(examples) if all(a[0] >= b[0] for a, b in pairwise(order))]
    curves = [[sum(wrong for _, wrong in order[: i + 1]) / (i + 1) for i in range(B)] for order in orders]
    expected = torch.tensor(curves).mean(0)
    confidence, wrong = torch.tensor([c for c, _ in examples]) / 3, torch.tensor([w for _, w in examples])
    coverage, risk = metrics.risk_coverage(confidence, wrong)
    assert_close(coverage, torch.tensor([(i + 1) / B for i in range(B)]))
    assert_close(risk, expected)
    assert_close(metrics.aurc(confidence, wrong), expected.mean())


@given(examples=examples, seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_the_order_of_input_does_not_count(examples: list[tuple[int, bool]], seed: int) -> None:
    confidence, wrong = torch.tensor([c for c, _ in examples]) / 3, torch.tensor([w for _, w in examples])
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    assert_close(metrics.aurc(confidence[order], wrong[order]), metrics.aurc(confidence, wrong))


def test_known_cases() -> None:
    falling = torch.tensor([0.9, 0.8, 0.7, 0.6])
    assert metrics.aurc(falling, torch.zeros(4)) == 0
    assert metrics.aurc(falling, torch.ones(4)) == 1
    late, early = torch.tensor([False, False, True, True]), torch.tensor([True, True, False, False])
    assert_close(metrics.aurc(falling, late), torch.tensor((0 + 0 + 1 / 3 + 1 / 2) / 4))
    assert_close(metrics.aurc(falling, early), torch.tensor((1 + 1 + 2 / 3 + 1 / 2) / 4))
    assert_close(metrics.aurc(torch.ones(4), early), torch.tensor(0.5))  # no confidence to tell by

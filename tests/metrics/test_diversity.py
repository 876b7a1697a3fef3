from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from torchmcl import metrics
from torchmcl.errors import UsageError

sizes = st.integers(1, 6)


@given(seed=st.integers(0, 10_000), M=sizes, B=sizes, C=sizes)
@settings(deadline=None, max_examples=60)
def test_disagreement_against_all_pairs(seed: int, M: int, B: int, C: int) -> None:
    p = torch.randint(4, (M, B, C), generator=torch.Generator().manual_seed(seed)) / 3
    answers = p.argmax(2).tolist()
    pairs = [sum(a != b for a, b in zip(*pair, strict=True)) / B for pair in combinations(answers, 2)]
    assert_close(float(metrics.disagreement(p)), sum(pairs) / max(len(pairs), 1), rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 10_000), M=sizes, B=sizes, G=sizes, data=st.data())
@settings(deadline=None, max_examples=60)
def test_assignment_against_loops(seed: int, M: int, B: int, G: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(seed)
    w, group = torch.rand(M, B, generator=generator) + 0.01, torch.randint(G, (B,), generator=generator)
    assert_close(metrics.share(w), torch.tensor([sum(row.tolist()) / B for row in w]))
    counts = torch.zeros(G, M)
    for m in range(M):
        for b in range(B):
            counts[group[b], m] += w[m, b]
    assert_close(metrics.taken(w, group, G), counts)
    k = data.draw(st.integers(1, M))
    top = sum(sum(sorted(row.tolist())[-k:]) for row in counts)
    assert_close(float(metrics.purity(counts, k)), top / float(counts.sum()), rtol=1e-5, atol=1e-6)


def test_known_cases() -> None:
    alike, apart = torch.eye(3)[[0, 0, 0]][:, None], torch.eye(3)[:, None]
    assert metrics.disagreement(alike) == 0
    assert metrics.disagreement(apart) == 1
    assert metrics.disagreement(apart[:1]) == 0
    assert metrics.purity(torch.eye(4)) == 1
    assert metrics.purity(torch.ones(4, 5), k=2) == pytest.approx(0.4)
    assert metrics.purity(torch.ones(4, 5, dtype=torch.int64), k=5) == 1
    assert metrics.purity(torch.zeros(4, 5)).isnan()


@pytest.mark.parametrize("k", [0, 6])
def test_purity_of_more_members_than_there_are(k: int) -> None:
    for ask in (lambda: metrics.purity(torch.ones(4, 5), k), lambda: metrics.Purity(4, 5, k)):
        with pytest.raises(UsageError, match=f"Expected 1 <= k <= 5 members, got k={k}"):
            ask()

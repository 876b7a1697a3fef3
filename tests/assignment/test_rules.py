from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from torchmcl import State, UsageError, assignment
from torchmcl.assignment import Annealed, Evolving, Relaxed, TopK, balanced, top_k
from torchmcl.testing import check_assignment


@pytest.mark.parametrize("assign", [TopK, Relaxed, Evolving, Annealed, lambda k: assignment.everyone])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_conformance(assign, members):
    check_assignment(assign, members=members)


def test_conformance_finds_what_is_wrong():
    for wrong in (
        lambda k: lambda regret, state: regret.softmax(0),  # prefers the most regret, carries a gradient
        lambda k: lambda regret, state: TopK(1)(regret, state),
        lambda k: lambda regret, state: torch.ones(len(regret)),
        lambda k: lambda regret, state: TopK(k)(regret * torch.arange(len(regret))[:, None], state),
    ):
        with pytest.raises(AssertionError):
            check_assignment(wrong)


@given(st.data())
def test_top_k_of_regret_is_the_best_of_all_subsets(data):
    M, B = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    k = data.draw(st.integers(1, M))
    # Few distinct values: ties are common, and go to the lower member.
    values = st.integers(0, 3)
    take = torch.tensor(data.draw(st.lists(values, min_size=M * B, max_size=M * B))).view(M, B).double()
    leave = torch.tensor(data.draw(st.lists(values, min_size=M * B, max_size=M * B))).view(M, B).double()
    weights = TopK(k)(take - leave, State())
    for b in range(B):
        value = {
            subset: sum(float(take[m, b] if m in subset else leave[m, b]) for m in range(M))
            for subset in combinations(range(M), k)
        }
        chosen = tuple(weights[:, b].nonzero().flatten().tolist())
        assert value[chosen] == min(value.values())
        regret = (take - leave)[:, b].tolist()
        assert chosen == tuple(sorted(sorted(range(M), key=lambda m: (regret[m], m))[:k]))


def test_temperature_zero_is_winner_takes_all():
    regret = torch.randn(5, 100)
    for k in range(1, 6):
        torch.testing.assert_close(
            Annealed(k, start=1e-6, hard_below=0)(regret, State(1, 10)), TopK(k)(regret, State()), atol=1e-4, rtol=0
        )


def test_annealing_without_a_temperature_left_shares_evenly():
    torch.testing.assert_close(Annealed(2, start=1e9)(torch.randn(5, 3), State(1, 10)), torch.full((5, 3), 0.4))


def test_annealed_weights_sum_to_k():
    for k in range(1, 6):
        for scale in (1e-3, 1.0, 1e3):
            sums = Annealed(k)(scale * torch.randn(5, 1000), State(1, 10)).sum(0)
            torch.testing.assert_close(sums, torch.full_like(sums, k), atol=1e-3, rtol=0)


def test_k_beyond_the_members():
    for k in (0, 4):
        with pytest.raises(UsageError, match=f"1 <= k <= 3 members, got k={k}"):
            TopK(k)(torch.zeros(3, 2), State())
        with pytest.raises(UsageError, match=f"1 <= k <= 3 members, got k={k}"):
            balanced(torch.zeros(2, 3, dtype=int), k)


@given(st.data())
def test_balanced(data):
    """Row sums k, column sums equal to within one, and no such choice keeps more counts."""
    classes, members = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    k = data.draw(st.integers(1, members))
    numbers = data.draw(st.lists(st.integers(0, 20), min_size=classes * members, max_size=classes * members))
    counts = torch.tensor(numbers).view(classes, members)
    flags = balanced(counts, k)
    assert flags.dtype == torch.bool
    assert (flags.sum(1) == k).all()
    assert flags.sum(0).max() - flags.sum(0).min() <= 1
    if classes * k >= members:
        assert flags.any(0).all()  # nobody without a class
    if classes <= 4:
        assert int(counts[flags].sum()) == _best_balanced(counts.tolist(), k)


def _best_balanced(rows, k):
    members, best = len(rows[0]), -1
    most, least = -(-len(rows) * k // members), len(rows) * k // members

    def go(row, load, value):
        nonlocal best
        if row == len(rows):
            if all(least <= n <= most for n in load):
                best = max(best, value)
            return
        for subset in combinations(range(members), k):
            after = [n + (m in subset) for m, n in enumerate(load)]
            if max(after) <= most:
                go(row + 1, after, value + sum(rows[row][m] for m in subset))

    go(0, [0] * members, 0)
    return best


def test_balanced_agrees_with_the_assignment_problem():
    """For k = 1 and as many classes as members it is the classical problem, here at a size no brute force reaches."""
    counts = torch.randint(1000, (40, 40), generator=torch.Generator().manual_seed(0))
    rows, columns = linear_sum_assignment(counts.numpy(), maximize=True)
    assert int(counts[balanced(counts, 1)].sum()) == int(counts.numpy()[rows, columns].sum())


def test_top_k_of_equals_is_the_first():
    assert top_k(torch.zeros(1, 20), 3, dim=1)[0].nonzero().flatten().tolist() == [0, 1, 2]

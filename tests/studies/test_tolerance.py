"""Errors of probabilities that differ by rounding lie within the bounds, and the bounds do not allow more than that."""

import pytest
import torch

from torchmcl.assignment import top_k
from torchmcl.studies.tolerance import MARGIN, error_bounds, lead, own_error_bounds

MEMBERS, EXAMPLES, CLASSES, K = 3, 40, 4, 2


def drawn(seed):
    """Probabilities of members (M, N, C) with many near ties, and targets (N,)."""
    torch.manual_seed(seed)
    return torch.randint(1, 5, (MEMBERS, EXAMPLES, CLASSES)).double() / 8, torch.randint(CLASSES, (EXAMPLES,))


def errors(members, target):
    """Oracle, top-1 and top-2 error, own error, and own error of each member, by loops."""
    combined = members.mean(0)
    wrong = [[int(member[n].argmax()) != target[n] for n in range(EXAMPLES)] for member in members]
    oracle = sum(all(row[n] for row in wrong) for n in range(EXAMPLES))
    first = sum(int(combined[n].argmax()) != target[n] for n in range(EXAMPLES))
    list_of_two = sum(int(target[n]) not in combined[n].topk(2).indices.tolist() for n in range(EXAMPLES))
    taken = top_k(torch.stack([members[:, n, target[n]] for n in range(EXAMPLES)], 1), K, dim=0)
    own = [[row[n] for n in range(EXAMPLES) if taken[m, n]] for m, row in enumerate(wrong)]
    parts = [100 * sum(one) / len(one) if one else None for one in own]
    return (
        [100 * count / EXAMPLES for count in (oracle, first, list_of_two)],
        100 * sum(map(sum, own)) / K / EXAMPLES,
        parts,
    )


def all_bounds(members, target):
    combined = members.mean(0)[None]
    of_target = torch.stack([members[:, n, target[n]] for n in range(EXAMPLES)], 1)
    total, own = own_error_bounds(lead(members, target), of_target, K)
    rates = [error_bounds(one) for one in (lead(members, target), lead(combined, target), lead(combined, target, 2))]
    return rates, total, own


@pytest.mark.parametrize("seed", range(5))
def test_rounding_stays_within_the_bounds(seed):
    members, target = drawn(seed)
    rates, total, own = all_bounds(members, target)
    assert any(high > low for low, high in rates)
    for _ in range(20):
        changed = members + MARGIN / 2 * (2 * torch.rand_like(members) - 1)
        here, here_total, here_own = errors(changed, target)
        for value, (low, high) in zip((*here, here_total, *here_own), (*rates, total, *own), strict=True):
            assert value is None or low - 1e-4 <= value <= high + 1e-4


def test_without_near_ties_only_the_value_itself_is_allowed():
    torch.manual_seed(0)
    members, target = torch.rand(MEMBERS, EXAMPLES, CLASSES, dtype=torch.double), torch.randint(CLASSES, (EXAMPLES,))
    apart = members.sort(2).values.diff(dim=2).amin(2) > 3 * MARGIN
    members = torch.where(apart.all(0)[None, :, None], members, torch.eye(CLASSES)[target].double())
    members = members + torch.arange(MEMBERS)[:, None, None] * 0.01  # the k largest are apart as well
    rates, total, own = all_bounds(members, target)
    here, here_total, here_own = errors(members, target)
    assert [low for low, _ in rates[:1]] == pytest.approx(here[:1], abs=1e-4)
    assert [high for _, high in rates[:1]] == pytest.approx(here[:1], abs=1e-4)
    assert total[0] <= here_total <= total[1]
    assert all(low - 1e-4 <= value <= high + 1e-4 for value, (low, high) in zip(here_own, own, strict=True))


def test_a_fixed_memory_leaves_no_choice():
    leads = torch.tensor([[0.5, -0.5, 0.0], [-0.5, 0.5, 0.5]])
    flags = torch.tensor([[True, True, True], [False, False, False]])
    total, own = own_error_bounds(leads, torch.full((2, 3), 0.5), 1, flags)
    assert total == (33.3333, 66.6667)
    assert own[0] == total
    assert own[1] == (-float("inf"), float("inf"))  # has no example


def test_a_list_of_all_classes_is_never_wrong():
    assert error_bounds(lead(torch.rand(5, 3), torch.tensor([0, 1, 2, 0, 1]), 3)[None]) == (0.0, 0.0)

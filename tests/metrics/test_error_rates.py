import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from torchmcl import metrics

sizes = st.integers(1, 5)


def draw(seed: int, *shape: int) -> torch.Tensor:
    """Few distinct values, so that classes tie."""
    return torch.randint(4, shape, generator=torch.Generator().manual_seed(seed)) / 3


def targets(seed: int, classes: int, *shape: int) -> torch.Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed + 1))


def first_best(values: list[float]) -> int:
    return values.index(max(values))


@given(seed=st.integers(0, 10_000), M=sizes, B=sizes, C=sizes)
@settings(deadline=None, max_examples=60)
def test_against_the_definition(seed: int, M: int, B: int, C: int) -> None:
    p, y = draw(seed, M, B, C), targets(seed, C, B)
    wrong = [[first_best(p[m, b].tolist()) != int(y[b]) for b in range(B)] for m in range(M)]
    assert metrics.members_wrong(p, y).tolist() == wrong
    assert_close(metrics.member_errors(p, y), torch.tensor([sum(row) / B for row in wrong]))
    all_wrong = [all(wrong[m][b] for m in range(M)) for b in range(B)]
    assert metrics.oracle_wrong(p, y).tolist() == all_wrong
    assert_close(metrics.oracle_error(p, y), torch.tensor(sum(all_wrong) / B))
    assert metrics.top1_wrong(p[0], y).tolist() == wrong[0]
    assert_close(metrics.top1_error(p[0], y), torch.tensor(sum(wrong[0]) / B))


@given(seed=st.integers(0, 10_000), M=sizes, B=sizes, C=sizes)
@settings(deadline=None, max_examples=30)
def test_meaning(seed: int, M: int, B: int, C: int) -> None:
    p, y = draw(seed, M, B, C), targets(seed, C, B)
    oracle, each = metrics.oracle_error(p, y), metrics.member_errors(p, y)
    assert oracle <= each.min()
    assert_close(metrics.oracle_error(p.flip(0), y), oracle)
    assert_close(metrics.oracle_error(p[:1], y), each[0])
    auxiliary = torch.cat([p, draw(seed + 2, M, B, 1)], 2)
    assert metrics.oracle_error(auxiliary, y) >= oracle  # the strict variant is never the better one


def test_dense_is_pixel_by_pixel() -> None:
    p, y = draw(0, 3, 2, 4, 5, 6), targets(0, 4, 2, 5, 6)
    flat = p.movedim(2, -1).flatten(1, 3)
    assert_close(metrics.oracle_error(p, y), metrics.oracle_error(flat, y.flatten()))
    assert_close(metrics.member_errors(p, y), metrics.member_errors(flat, y.flatten()))
    assert_close(metrics.top1_error(p[0], y), metrics.top1_error(flat[0], y.flatten()))


def test_harmonic_mean() -> None:
    half, zero = torch.tensor(0.5), torch.tensor(0.0)
    assert metrics.harmonic_mean(half, half) == 0.5
    assert metrics.harmonic_mean(half, zero) == 0
    assert metrics.harmonic_mean(zero.half(), zero.half()) == 0
    assert_close(metrics.harmonic_mean(torch.tensor(0.2), torch.tensor(0.6)), torch.tensor(0.3))

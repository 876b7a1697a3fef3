import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.data.strata import Purpose, hold_out, stratified_subset
from torchmcl.errors import UsageError

labels = st.lists(st.integers(0, 5), min_size=2, max_size=80).map(torch.tensor)


@given(label=labels, fraction=st.floats(0.01, 0.99), seed=st.integers(0, 100))
def test_each_label_gives_its_part(label, fraction, seed) -> None:
    if label.bincount().max() < 2:
        with pytest.raises(UsageError, match="Cannot hold out any of"):
            hold_out(label, fraction, seed=seed, purpose=Purpose.TEST)
        return
    kept, held = hold_out(label, fraction, seed=seed, purpose=Purpose.TEST)
    assert torch.cat([kept, held]).sort().values.tolist() == list(range(len(label)))
    assert kept.equal(kept.sort().values)
    assert held.equal(held.sort().values)
    for c, n in enumerate(label.bincount().tolist()):
        taken = int((label[held] == c).sum())
        if n >= 2:
            assert 1 <= taken <= n - 1
            assert abs(taken - n * fraction) <= 1
        else:
            assert taken == 0


@given(label=labels, count=st.integers(1, 100), seed=st.integers(0, 100))
def test_a_limit_keeps_proportions(label, count, seed) -> None:
    chosen = stratified_subset(label, count, seed=seed)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, len(label))
    assert chosen.equal(chosen.sort().values)
    sizes, taken = label.bincount(minlength=6), label[chosen].bincount(minlength=6)
    if count >= int((sizes > 0).sum()):
        assert (taken[sizes > 0] >= 1).all()
    assert set(chosen.tolist()) <= set(stratified_subset(label, count + 1, seed=seed).tolist())


def test_equal_classes_are_limited_equally() -> None:
    label = torch.arange(10).repeat(500)
    assert label[stratified_subset(label, 1000, seed=0)].bincount().tolist() == [100] * 10


def test_seeds_and_purposes() -> None:
    label = torch.arange(4).repeat(50)

    def held(seed: int, purpose: Purpose) -> list[int]:
        return hold_out(label, 0.2, seed=seed, purpose=purpose)[1].tolist()

    assert held(0, Purpose.TEST) == held(0, Purpose.TEST)
    assert held(0, Purpose.TEST) != held(1, Purpose.TEST)
    assert held(0, Purpose.TEST) != held(0, Purpose.VALIDATION)
    assert stratified_subset(label, 20, seed=0).tolist() != stratified_subset(label, 20, seed=1).tolist()


def test_the_choice_is_the_same_in_every_release() -> None:
    assert hold_out(torch.zeros(20, dtype=torch.int64), 0.2, seed=0, purpose=Purpose.TEST)[1].tolist() == [2, 3, 11, 13]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_a_fraction_that_is_none(fraction) -> None:
    with pytest.raises(UsageError, match="Expected a fraction between 0 and 1 to hold out"):
        hold_out(torch.zeros(4, dtype=torch.int64), fraction, seed=0, purpose=Purpose.TEST)


def test_a_limit_and_a_seed_that_are_none() -> None:
    with pytest.raises(UsageError, match="Expected limit >= 1, got 0"):
        stratified_subset(torch.zeros(4, dtype=torch.int64), 0, seed=0)
    with pytest.raises(UsageError, match="Expected seed >= 0, got -1"):
        stratified_subset(torch.zeros(4, dtype=torch.int64), 2, seed=-1)

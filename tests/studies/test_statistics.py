import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.studies.statistics import mean_std, paired_bootstrap

NUMBERS = st.floats(-100, 100, allow_nan=False)


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_mean_and_std(values):
    mean, std = mean_std(values)
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert std == (pytest.approx(statistics.stdev(values), abs=1e-9) if len(values) > 1 else None)


def slow_bootstrap(one, two, rounds, level, seed):
    """Draw examples one by one, with a loop."""
    chance, means = random.Random(seed), []
    for _ in range(rounds):
        drawn = [chance.randrange(len(one)) for _ in one]
        means.append(sum(one[at] - two[at] for at in drawn) / len(one))
    means.sort()
    edge = (1 - level) / 2
    return means[int(edge * rounds)], means[int((1 - edge) * rounds) - 1]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=30, max_size=60), st.sampled_from([0.8, 0.95]))
def test_the_bootstrap_is_that_of_a_slow_loop(pairs, level):
    one, two = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    found = paired_bootstrap(one, two, rounds=4000, level=level)
    assert found.value == pytest.approx((one - two).mean())
    assert found.low <= found.value <= found.high
    # An end of either interval is known to about the spread of the means times .07, and lies on a grid of 1 / N.
    tolerance = 0.3 * (one - two).std() / len(one) ** 0.5 + 1.001 / len(one)
    low, high = slow_bootstrap(one, two, 1000, level, seed=1)
    assert (found.low, found.high) == (pytest.approx(low, abs=tolerance), pytest.approx(high, abs=tolerance))


@given(st.lists(NUMBERS, min_size=5, max_size=20))
def test_real_numbers_and_no_difference(values):
    nothing = paired_bootstrap(values, values)
    assert nothing == (0, 0, 0)
    assert not nothing.clear
    shifted = paired_bootstrap(np.array(values) + 1.5, values)
    assert shifted.value == pytest.approx(1.5)
    assert shifted.clear


def test_it_is_seeded():
    chance = np.random.default_rng(0)
    one, two = chance.random((2, 50))
    assert paired_bootstrap(one, two, seed=3) == paired_bootstrap(one, two, seed=3)
    assert paired_bootstrap(one, two, seed=3) != paired_bootstrap(one, two, seed=4)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    chance = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        one, two = chance.random(200) < 0.5, chance.random(200) < 0.4
        found = paired_bootstrap(one, two, rounds=1000)
        hits += found.low <= 0.1 <= found.high
    assert 0.90 <= hits / 300 <= 0.99

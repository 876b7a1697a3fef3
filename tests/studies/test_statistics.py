import math
import random
import statistics
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from torchmcl.errors import UsageError
from torchmcl.studies.statistics import (
    expected_false,
    holm,
    mean_std,
    paired_bootstrap,
    paired_seeds,
    sign_flip,
    sign_flip_level,
)

NUMBERS = st.floats(-100, 100, allow_nan=False)
PERCENT = st.integers(0, 10_000).map(lambda count: count / 100)  # an error on 10,000 examples


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
    assert not nothing.excludes_zero
    shifted = paired_bootstrap(np.array(values) + 1.5, values)
    assert shifted.value == pytest.approx(1.5)
    assert shifted.excludes_zero


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


def slow_sign_flip(differences):
    """Flip the signs one by one, in exact arithmetic."""
    observed, count = abs(sum(differences)), 0
    for signs in product((1, -1), repeat=len(differences)):
        count += abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed
    return count / 2 ** len(differences)


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=8))
def test_the_sign_flip_test_is_that_of_a_slow_loop(differences):
    """Integers tie often; a hundredth of them does not add up exactly, but counts the same."""
    expected = slow_sign_flip(differences)
    assert sign_flip(differences) == expected
    assert sign_flip(np.array(differences) / 100) == expected


@given(st.lists(PERCENT.map(lambda error: error - 50), min_size=2, max_size=8))
def test_the_sign_flip_test_is_the_permutation_test_of_scipy(differences):
    assume(abs(sum(differences)) > 0.01 * sum(map(abs, differences)))  # its tolerance is relative to the mean
    test = scipy.stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip(differences) == pytest.approx(test.pvalue)


def test_many_seeds_draw_some_of_the_flips():
    chance = np.random.default_rng(0)
    for shift in (0.0, 0.5):
        differences = chance.normal(shift, 1, size=20)
        sums = np.zeros(1)
        for difference in differences:
            sums = np.concatenate([sums + difference, sums - difference])
        exact = np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-9)
        assert sign_flip(differences) == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 2**16))
    assert sign_flip([1.0] * 60) == 2**-16, "the observed signs count, so that no p-value is 0"


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=8))
def test_the_t_test_and_its_interval_are_those_of_scipy(pairs):
    one, two = np.array(pairs).T
    differences = one - two
    assume(np.ptp(differences) > 1e-6)
    found = paired_seeds(one, two)
    paired = scipy.stats.ttest_rel(one, two)
    assert found.p_t == pytest.approx(paired.pvalue, rel=1e-6, abs=1e-12)
    low, high = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))
    assert found.value == pytest.approx(differences.mean(), abs=1e-9)
    assert (found.p_sign_flip, found.seeds, found.bootstrap) == (sign_flip(differences), len(pairs), None)


@given(st.lists(st.tuples(PERCENT, PERCENT), min_size=1, max_size=8), st.randoms())
def test_what_does_not_matter(pairs, chance):
    """The order of the seeds, and which configuration comes first, but for the sign."""
    one, two = zip(*pairs, strict=True)
    found, swapped = paired_seeds(one, two), paired_seeds(two, one)
    assert (found.value, found.low, found.high) == pytest.approx((-swapped.value, -swapped.high, -swapped.low))
    assert (found.clear, found.equivalent(), found.p_sign_flip) == (
        swapped.clear,
        swapped.equivalent(),
        swapped.p_sign_flip,
    )
    shuffled = paired_seeds(*zip(*chance.sample(pairs, len(pairs)), strict=True))
    assert (found.value, found.p_t) == (pytest.approx(shuffled.value), pytest.approx(shuffled.p_t))
    assert found.p_sign_flip == shuffled.p_sign_flip


@pytest.mark.parametrize(
    ("differences", "p", "clear"),
    [
        ([-5.6, -5.3, -5.5, -5.7, -5.4, -5.6], 1 / 32, True),
        ([0.3, -0.2, 0.1, -0.1, 0.2, -0.3], 1.0, False),  # no difference
        ([5.6, 5.3, 5.5, 5.7, 5.4, -0.01], 1 / 16, False),  # five of six signs
        ([5.6, 5.3, 5.5, 5.7, 5.4, -5.45], 1 / 8, False),  # as far: this one, -5.3, -5.4 or none negative
        ([5.6, 5.3, 5.5, 5.7, 5.4, 0.0], 1 / 16, False),  # a tie
        ([0.1, 0.1, 0.1, 0.1, 0.1, 5.0], 1 / 32, False),  # same signs, but the t interval contains zero
        ([5.6, 5.3, 5.5, 5.7, 5.4], 1 / 16, False),
        ([5.6, 5.3, 5.5, 5.7, 5.4, 5.6, -0.01], 1 / 32, True),  # seven seeds allow for one small exception
    ],
)
def test_what_is_clear(differences, p, clear):
    found = paired_seeds(np.array(differences) + 20, [20.0] * len(differences))
    assert (found.p_sign_flip, found.clear) == (pytest.approx(p), clear)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_fewer_than_six_seeds_are_never_clear(pairs):
    found = paired_seeds(*zip(*pairs, strict=True))
    assert not found.clear
    assert found.p_sign_flip >= 2 / 2 ** len(pairs)


def test_one_seed_has_no_interval():
    found = paired_seeds([3.0], [9.0])
    assert (found.value, found.low, found.high, found.seeds) == (-6.0, -math.inf, math.inf, 1)
    assert (found.p_sign_flip, found.p_t, found.clear, found.equivalent(100)) == (1.0, 1.0, False, False)


def test_two_seeds():
    found = paired_seeds([1.0, 2.0], [0.0, 0.0])
    assert (found.low, found.high) == pytest.approx((1.5 - 12.706 / 2, 1.5 + 12.706 / 2), abs=1e-3)
    assert (found.p_sign_flip, found.clear) == (0.5, False)


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_no_variance(seeds):
    nothing = paired_seeds([7.1] * seeds, [7.1] * seeds)
    assert (nothing.value, nothing.low, nothing.high) == (0, 0, 0)
    assert (nothing.p_sign_flip, nothing.p_t, nothing.clear, nothing.equivalent()) == (1, 1, False, True)
    same = paired_seeds([7.5] * seeds, [7.0] * seeds)
    assert (same.value, same.low, same.high) == (0.5, 0.5, 0.5)
    assert (same.p_sign_flip, same.p_t, same.clear) == (2 / 2**seeds, 0, seeds == 6)
    assert (same.equivalent(), same.equivalent(0.51)) == (False, True)


def test_rounding_is_no_difference():
    one, two = [0.1 + 0.2] * 6, [0.3] * 6
    assert one != two
    assert paired_seeds(one, two) == paired_seeds(two, two)


def test_equivalence_needs_a_narrow_interval_around_zero():
    near = paired_seeds([10.1, 9.9, 10.0, 10.2, 9.8, 10.0], [10.0] * 6)
    assert (near.clear, near.equivalent(), near.equivalent(0.1)) == (False, True, False)
    wide = paired_seeds([12.0, 8.0, 10.0, 11.0, 9.0, 10.0], [10.0] * 6)
    assert (wide.clear, wide.equivalent()) == (False, False)
    small = paired_seeds([10.1, 10.2, 10.1, 10.2, 10.1, 10.2], [10.0] * 6)
    assert (small.clear, small.equivalent()) == (True, True)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_equivalence_is_two_one_sided_t_tests_at_half_the_level(differences):
    assume(np.ptp(differences) > 1e-6)
    below = scipy.stats.ttest_1samp(differences, 0.5, alternative="less").pvalue
    above = scipy.stats.ttest_1samp(differences, -0.5, alternative="greater").pvalue
    assume(abs(max(below, above) - 0.025) > 1e-6)
    assert paired_seeds(differences, [0.0] * len(differences)).equivalent() == (max(below, above) < 0.025)


def slow_holm(p_values):
    """Reject from the smallest p-value on, as long as p <= level / (hypotheses left): the smallest such level."""
    left, levels, level = sorted(range(len(p_values)), key=lambda at: p_values[at]), {}, 0.0
    while left:
        level = max(level, min(1.0, len(left) * p_values[left[0]]))
        levels[left.pop(0)] = level
    return [levels[at] for at in range(len(p_values))]


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.01, 0.02, 1.0]), min_size=1, max_size=10))
def test_holm_is_that_of_a_slow_loop(p_values):
    adjusted = holm(p_values)
    assert adjusted == pytest.approx(slow_holm(p_values))
    assert all(p <= new <= min(1, len(p_values) * p) + 1e-12 for p, new in zip(p_values, adjusted, strict=True))


def test_holm_by_hand():
    assert holm([0.01, 0.02, 0.03, 0.04]) == pytest.approx([0.04, 0.06, 0.06, 0.06])
    assert holm([0.2]) == [0.2]


@pytest.mark.parametrize("seeds", range(1, 11))
def test_the_attainable_level_is_that_of_the_test(seeds):
    """Powers of two have different sums for all flips, as real differences have."""
    powers = 2.0 ** np.arange(seeds)
    found = {sign_flip(powers * signs) for signs in product((1, -1), repeat=seeds)}
    assert sign_flip_level(seeds) == max((p for p in found if p < 0.05), default=0)
    assert expected_false(40, seeds) == 40 * sign_flip_level(seeds)


def test_false_statements_are_as_rare_as_expected():
    chance = np.random.default_rng(0)
    found = [paired_seeds(*chance.normal(size=(2, 6))) for _ in range(2000)]
    flipped, clear = (sum(each.p_sign_flip < 0.05 for each in found), sum(each.clear for each in found))
    low, high = scipy.stats.binom.interval(0.999, 2000, 1 / 32)
    assert expected_false(2000, seeds=6) == 62.5
    assert low <= flipped <= high
    assert 0 < clear <= flipped
    assert not any(p < 0.05 for p in holm([each.p_t for each in found]))


@pytest.mark.parametrize("function", [paired_seeds, paired_bootstrap])
@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ([1.0, math.nan], [1.0, 2.0], "finite numbers, got nan at index 1"),
        ([1.0, 2.0], [math.inf, 2.0], "finite numbers, got inf at index 0"),
        ([1.0, 2.0], [1.0], "pairs of values, got 2 values of one side and 1 of the other"),
        ([], [], r"at least one number, got shape \(0,\)"),
        ([[1.0]], [[1.0]], r"at least one number, got shape \(1, 1\)"),
    ],
)
def test_values_that_cannot_be_compared(function, one, two, message):
    with pytest.raises(UsageError, match=message):
        function(one, two)


def test_other_wrong_arguments():
    for margin in (0, -1, math.nan):
        with pytest.raises(UsageError, match="positive margin"):
            paired_seeds([1.0, 2.0], [1.0, 1.0]).equivalent(margin)
    with pytest.raises(UsageError, match="finite numbers, got nan"):
        sign_flip([1.0, math.nan])
    with pytest.raises(UsageError, match="finite numbers, got nan"):
        holm([0.5, math.nan])
    with pytest.raises(UsageError, match=r"between 0 and 1, got 0\.5 to 1\.5"):
        holm([0.5, 1.5])
    with pytest.raises(UsageError, match="at least one seed, got 0"):
        expected_false(3, seeds=0)
    with pytest.raises(UsageError, match="at least 0 comparisons, got -1"):
        expected_false(-1, seeds=6)

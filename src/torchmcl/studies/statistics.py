"""Statistics of comparisons: intervals and tests over paired seeds, and a bootstrap over test examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchmcl.errors import UsageError

ALPHA = 0.05  # significance level of tests; intervals have the confidence level 1 - ALPHA
MARGIN = 0.5  # default margin of equivalence, in percentage points
ALL_FLIPS = 16  # largest number of seeds for which the sign-flip test enumerates all flips
EQUAL = 1e-12  # relative difference below which values count as equal


class Interval(NamedTuple):
    """A difference with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero is outside the interval.

        >>> Interval(-1.0, -2.0, -0.5).excludes_zero, Interval(-1.0, -2.0, 0.5).excludes_zero
        (True, False)
        """
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Difference:
    """The difference between two configurations, tested over paired seeds (see `paired_seeds`)."""

    value: float  # mean over the seeds
    low: float  # 95 % t interval over the seeds; infinite for a single seed
    high: float
    p_sign_flip: float
    p_t: float  # paired t test; 1 for a single seed
    seeds: int  # number of pairs
    bootstrap: Interval | None = None  # over test examples

    @property
    def clear(self) -> bool:
        """Whether the sign-flip test has p < 0.05 and the 95 % t interval excludes zero.

        The smallest p-value of n seeds is 2 / 2ⁿ. Fewer than six seeds therefore never give a clear difference, and
        the differences of six seeds must all have the same sign.

        >>> paired_seeds([3, 4, 3, 5, 4, 3], [2, 2, 2, 3, 3, 1]).clear, paired_seeds([3, 4, 3], [2, 2, 2]).clear
        (True, False)
        """
        return self.p_sign_flip < ALPHA and Interval(self.value, self.low, self.high).excludes_zero

    def equivalent(self, margin: float = MARGIN) -> bool:
        """Return whether the 95 % t interval over the seeds lies within (-margin, margin).

        This is the two one-sided tests procedure (TOST) with a 95 % instead of the usual 90 % interval. It is stricter:
        each one-sided test has the level 2.5 %. A difference that is not clear is not necessarily equivalent.

        Args:
            margin: the largest difference that does not matter, in the unit of the values

        Raises:
            UsageError: if the margin is not positive.

        >>> paired_seeds([4.1, 3.9, 4.0], [4.0, 4.0, 4.0]).equivalent()
        True
        """
        if not margin > 0:
            raise UsageError(f"Expected a positive margin, got {margin}.")
        return -margin < self.low and self.high < margin


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Compute the mean and the sample standard deviation, which is None for a single value.

    >>> mean_std([1.0, 3.0]), mean_std([2.0])
    ((2.0, 1.4142135623730951), (2.0, None))
    """
    numbers = np.asarray(values, dtype=np.float64)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else None


def paired_seeds(one: ArrayLike, two: ArrayLike) -> Difference:
    """Compute the mean of `one - two` over seeds with its 95 % t interval and the p-values of two paired tests.

    Both tests are two-sided: the exact sign-flip test (see `sign_flip`) and the paired t test. A single seed has an
    infinite interval, and both p-values are 1. If all differences are equal, the interval has the width 0.

    Args:
        one: values of the first configuration, one per seed, (S,)
        two: values of the second configuration for the same seeds, (S,)

    Returns:
        The difference, without a bootstrap interval.

    Raises:
        UsageError: if the numbers of values differ or are zero, or if a value is not finite.

    >>> found = paired_seeds([9.0, 8.0, 9.0], [10.0, 10.0, 10.0])
    >>> f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}], p = {found.p_t:.3f} and {found.p_sign_flip:.3f}"
    '-1.33 [-2.77, 0.10], p = 0.057 and 0.250'
    """
    from scipy.special import stdtr, stdtrit  # the t distribution; scipy.stats takes three times as long to import

    left, right = _pairs(one, two)
    # A difference that is due to rounding must not count as one: six of them can have the same sign.
    differences = np.where(np.isclose(left, right, rtol=EQUAL, atol=0), 0, left - right)
    value, std = mean_std(differences.tolist())
    seeds, p_flip = len(differences), sign_flip(differences)
    if std is None:
        return Difference(value, -inf, inf, p_flip, 1.0, seeds)
    error = std / sqrt(seeds)
    half = error * float(stdtrit(seeds - 1, 1 - ALPHA / 2))
    t = abs(value) / error if error > 0 else inf if value != 0 else 0.0
    return Difference(value, value - half, value + half, p_flip, 2 * float(stdtr(seeds - 1, -t)), seeds)


def sign_flip(differences: ArrayLike) -> float:
    """Compute the two-sided p-value of the sign-flip test: the permutation test for paired values.

    If the two configurations do not differ, each difference is as likely to be positive as negative. The p-value is the
    share of all 2ⁿ choices of signs for which the absolute mean is at least the observed one, up to rounding. For more
    than 16 differences, 2¹⁶ choices, including the observed one, are drawn with a fixed seed.

    Args:
        differences: one difference per seed, (S,)

    Raises:
        UsageError: if there is no difference, or one that is not finite.

    >>> sign_flip([1, 2, 1, 2, 3, 1]), sign_flip([1, 2, 1, 2, 3, -1]), sign_flip([1, 2, 1]), sign_flip([0, 0])
    (0.03125, 0.125, 0.25, 1.0)
    """
    values = _finite(differences)
    count = len(values)
    if count <= ALL_FLIPS:
        flips = np.arange(2**count)[:, None] >> np.arange(count) & 1
    else:
        flips = np.random.default_rng(0).integers(0, 2, size=(2**ALL_FLIPS, count))
        flips[0] = 0
    sums = np.abs((1 - 2 * flips) @ values)
    return float(np.mean(sums >= sums[0] - EQUAL * np.abs(values).sum()))


def sign_flip_level(seeds: int) -> float:
    """Return the attainable level of the sign-flip test: its largest p-value below 0.05, or 0 if there is none.

    The p-values of n seeds are multiples of 2 / 2ⁿ.

    >>> sign_flip_level(5), sign_flip_level(6), sign_flip_level(7)
    (0.0, 0.03125, 0.046875)
    """
    if seeds < 1:
        raise UsageError(f"Expected at least one seed, got {seeds}.")
    smallest = 2.0 ** (1 - seeds)
    return (ceil(ALPHA / smallest) - 1) * smallest


def expected_false(n: int, seeds: int) -> float:
    """Return how many of n comparisons are expected to be clear by chance if no configurations differ.

    This is n times the attainable level of the sign-flip test. It is an upper bound, because the t interval of a clear
    difference must exclude zero as well. The comparisons need not be independent.

    Args:
        n: number of comparisons that were tested, whether clear or not
        seeds: number of seeds per comparison

    >>> expected_false(40, seeds=6), expected_false(40, seeds=3)
    (1.25, 0.0)
    """
    if n < 0:
        raise UsageError(f"Expected at least 0 comparisons, got {n}.")
    return n * sign_flip_level(seeds)


def holm(p_values: ArrayLike) -> list[float]:
    """Adjust p-values for multiple testing with the method of Holm (1979).

    Rejecting every hypothesis with an adjusted p-value below 0.05 keeps the probability of any false rejection below
    0.05. Use the p-values of the t test (`Difference.p_t`): those of the sign-flip test cannot be smaller than
    2 / 2ⁿ for n seeds, so that no correction for several comparisons is possible with few seeds.

    Args:
        p_values: one p-value per statement, (N,)

    Returns:
        The adjusted p-values in the same order.

    Raises:
        UsageError: if there is no p-value, or one that is not between 0 and 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = _finite(p_values)
    if values.min() < 0 or values.max() > 1:
        raise UsageError(f"Expected p-values between 0 and 1, got {values.min():g} to {values.max():g}.")
    order = np.argsort(values)
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)).clip(max=1)
    return adjusted.tolist()


def paired_bootstrap(
    one: ArrayLike, two: ArrayLike, *, seed: int = 0, rounds: int = 10_000, level: float = 0.95
) -> Interval:
    """Compute the mean of `one - two` with its percentile bootstrap interval over examples.

    Args:
        one: values of the first configuration, (N,)
        two: values of the second configuration for the same examples, (N,)
        seed: random seed
        rounds: number of resamples
        level: confidence level

    Returns:
        The mean difference with its interval.

    Raises:
        UsageError: if the numbers of values differ or are zero, or if a value is not finite.

    >>> paired_bootstrap([1.0] * 50 + [0.0] * 50, [0.0] * 100)
    Interval(value=0.5, low=0.4, high=0.6)
    """
    left, right = _pairs(one, two)
    difference = left - right
    # Examples with the same difference are exchangeable. Drawing the counts of the distinct differences from a
    # multinomial distribution is therefore equivalent to resampling examples.
    values, counts = np.unique(difference, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(difference), counts / len(difference), size=rounds)
    means = draws @ values / len(difference)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(difference.mean()), float(low), float(high))


def _pairs(one: ArrayLike, two: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left, right = _finite(one), _finite(two)
    if len(left) != len(right):
        raise UsageError(f"Expected pairs of values, got {len(left)} values of one side and {len(right)} of the other.")
    return left, right


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not len(numbers):
        raise UsageError(f"Expected a list of at least one number, got shape {numbers.shape}.")
    if not np.isfinite(numbers).all():
        at = int(np.argmin(np.isfinite(numbers)))
        raise UsageError(f"Expected finite numbers, got {numbers[at]} at index {at}.")
    return numbers

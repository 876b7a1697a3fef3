from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A difference with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes zero.

        >>> Interval(-1.0, -2.0, -0.5).clear, Interval(-1.0, -2.0, 0.5).clear
        (True, False)
        """
        return self.low > 0 or self.high < 0


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Compute the mean and the sample standard deviation, which is None for a single value.

    >>> mean_std([1.0, 3.0]), mean_std([2.0])
    ((2.0, 1.4142135623730951), (2.0, None))
    """
    numbers = np.asarray(values, dtype=np.float64)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else None


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

    >>> paired_bootstrap([1.0] * 50 + [0.0] * 50, [0.0] * 100)
    Interval(value=0.5, low=0.4, high=0.6)
    """
    difference = np.asarray(one, dtype=np.float64) - np.asarray(two, dtype=np.float64)
    # Examples with the same difference are exchangeable. Drawing the counts of the distinct differences from a
    # multinomial distribution is therefore equivalent to resampling examples.
    values, counts = np.unique(difference, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(difference), counts / len(difference), size=rounds)
    means = draws @ values / len(difference)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(difference.mean()), float(low), float(high))

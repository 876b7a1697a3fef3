from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A difference with the interval that holds it."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether zero lies outside.

        >>> Interval(-1.0, -2.0, -0.5).clear, Interval(-1.0, -2.0, 0.5).clear
        (True, False)
        """
        return self.low > 0 or self.high < 0


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean, and the standard deviation over seeds (of a sample; None of one value).

    >>> mean_std([1.0, 3.0]), mean_std([2.0])
    ((2.0, 1.4142135623730951), (2.0, None))
    """
    numbers = np.asarray(values, dtype=np.float64)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else None


def paired_bootstrap(
    one: ArrayLike, two: ArrayLike, *, seed: int = 0, rounds: int = 10_000, level: float = 0.95
) -> Interval:
    """Mean of one - two over the same N examples, with its percentile interval over resampled examples.

    A resample is how often each example is drawn; examples of equal difference are alike, so the draws of each
    distinct difference are counted instead: multinomial, and exactly the same distribution.

    >>> paired_bootstrap([1.0] * 50 + [0.0] * 50, [0.0] * 100)
    Interval(value=0.5, low=0.4, high=0.6)
    """
    difference = np.asarray(one, dtype=np.float64) - np.asarray(two, dtype=np.float64)
    values, counts = np.unique(difference, return_counts=True)
    draws = np.random.default_rng(seed).multinomial(len(difference), counts / len(difference), size=rounds)
    means = draws @ values / len(difference)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(difference.mean()), float(low), float(high))

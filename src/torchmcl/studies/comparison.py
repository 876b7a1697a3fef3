"""Comparisons of configurations: differences in error, paired by seed, and whether they are clear."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from torchmcl.studies import store, tuning
from torchmcl.studies.statistics import (
    MARGIN,
    Difference,
    Interval,
    expected_false,
    holm,
    paired_bootstrap,
    paired_seeds,
)
from torchmcl.studies.store import Result

SEEDS = 6  # the smallest number of seeds with which a difference can be clear
COLUMNS = ("difference", "error", "mean", "95 % interval", "p (t test)", "p (Holm)", "over test examples", "verdict")


@dataclass(frozen=True)
class Comparison:
    """The difference between the errors of two configurations.

    Args:
        one: name of the first configuration
        two: name of the second configuration
        error: name of the error, oracle or top-1
        difference: error of the first minus error of the second, in percentage points
        fitted: whether the members of both configurations fit their training examples (see `tuning.fits`)
    """

    one: str
    two: str
    error: str
    difference: Difference
    fitted: bool = True

    @property
    def name(self) -> str:
        """The two configurations, such as "amcl minus ie"."""
        return f"{self.one} minus {self.two}"

    @property
    def judged(self) -> bool:
        """Whether the members fit their training examples and there are enough seeds."""
        return self.fitted and self.difference.seeds >= SEEDS

    @property
    def verdict(self) -> str:
        """Whether the difference is clear (see `Difference.clear`) and whether it is within the margin of 0.5 points.

        >>> seeds = paired_seeds([3, 4, 3, 5, 4, 3], [2, 2, 2, 3, 3, 1])
        >>> Comparison("a", "b", "top-1", seeds).verdict, Comparison("a", "b", "top-1", seeds, fitted=False).verdict
        ('clear', 'not judged: training error')
        >>> Comparison("a", "b", "top-1", paired_seeds([3, 4], [2, 2])).verdict
        'not judged: 2 seeds'
        """
        if not self.fitted:
            return "not judged: training error"
        if (count := self.difference.seeds) < SEEDS:
            return f"not judged: {count} seed{'s' * (count > 1)}"
        within = f", within {MARGIN}" if self.difference.equivalent() else ""
        return ("clear" if self.difference.clear else "not clear") + within


def compare(name: str, one: Sequence[Result], other: str, two: Sequence[Result], prefix: str = "") -> list[Comparison]:
    """Compare the results `one` of the configuration `name` with the results `two` of `other`, for their common seeds.

    Returns:
        The comparisons of the oracle and the top-1 error. The list is empty if there is no common seed.
    """
    fitted = all(tuning.fits(results) is not False for results in (one, two))
    return [
        Comparison(prefix + name, other, label, difference, fitted)
        for label, error in (("oracle", oracle_errors), ("top-1", top1_errors))
        if (difference := paired_difference(one, two, error)) is not None
    ]


def compare_all(name: str, by_name: Mapping[str, Sequence[Result]], prefix: str = "") -> list[Comparison]:
    """Compare one configuration with every other one (see `compare`)."""
    pairs = [(other, results) for other, results in by_name.items() if other != name]
    return [one for other, results in pairs for one in compare(name, by_name[name], other, results, prefix)]


def rows(comparisons: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """Return the cells of a table of comparisons, with the columns `COLUMNS`.

    >>> seeds = replace(paired_seeds([3, 4, 3, 5, 4, 3], [2, 2, 2, 3, 3, 1]), bootstrap=Interval(1.5, 1.1, 1.9))
    >>> rows([Comparison("a", "b", "top-1", seeds)])
    [('a minus b', 'top-1', '+1.50', '[+0.93, +2.07]', '0.001', '0.001', '[+1.10, +1.90]', 'clear')]
    """
    adjusted = holm([one.difference.p_t for one in comparisons]) if comparisons else []
    return [
        (
            one.name,
            one.error,
            f"{one.difference.value:+.2f}",
            bounds(one.difference),
            *((p_text(one.difference.p_t), p_text(p)) if one.difference.seeds > 1 else ("", "")),
            bounds(one.difference.bootstrap),
            one.verdict,
        )
        for one, p in zip(comparisons, adjusted, strict=True)
    ]


def caption(comparisons: Sequence[Comparison]) -> str:
    """Explain the table of comparisons, and say how many differences are expected to be clear by chance."""
    text = (
        "Differences in percentage points over paired seeds, with a t interval. clear: the sign-flip test has p < 0.05 "
        f"and the interval excludes 0. within {MARGIN}: the interval lies inside ±{MARGIN}. Holm: p of the paired t "
        "test, corrected for all rows. over test examples: bootstrap interval for these seeds."
    )
    judged = [one for one in comparisons if one.judged]
    if judged:
        expected = sum(expected_false(1, one.difference.seeds) for one in judged)
        text += f" If nothing differed, {expected:.1f} of {len(judged)} differences would be clear by chance."
    if any(not one.fitted for one in comparisons):
        text += f" training error: members err on more than {tuning.FITS:g} % of their training examples."
    return text


def p_text(value: float) -> str:
    """Format a p-value as a table cell.

    >>> p_text(0.0312), p_text(0.0002)
    ('0.031', '<0.001')
    """
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def bounds(interval: Interval | Difference | None, *, signed: bool = True) -> str:
    """Format an interval as a table cell, which is empty if there is none.

    >>> bounds(Interval(1.5, 1.1, 1.9)), bounds(Interval(1.5, 1.1, 1.9), signed=False), bounds(None)
    ('[+1.10, +1.90]', '[1.10, 1.90]', '')
    """
    if interval is None or not isfinite(interval.low):
        return ""
    sign = "+" if signed else ""
    return f"[{interval.low:{sign}.2f}, {interval.high:{sign}.2f}]"


def paired_difference(
    one: Sequence[Result], two: Sequence[Result], error: Callable[[Result], NDArray[np.float64]]
) -> Difference | None:
    """Compute the difference in error between two configurations in percentage points, paired by seed and test set.

    The tests and the interval are computed over the seeds. The bootstrap resamples examples; if all seeds share one
    test set, each example's errors are averaged over seeds.

    Returns:
        The difference with its bootstrap interval, or None if the configurations have no seed in common.
    """
    others = {(result["seed"], result["test_set"]): result for result in two}
    pairs = [(a, others[key]) for a in one if (key := (a["seed"], a["test_set"])) in others]
    if not pairs:
        return None
    sides = [[error(pair[side]) for pair in pairs] for side in (0, 1)]
    over_seeds = paired_seeds(*([100 * per_example.mean() for per_example in side] for side in sides))
    same_test_set = len({pair[0]["test_set"] for pair in pairs}) == 1
    left, right = (np.stack(side).mean(0) if same_test_set else np.concatenate(side) for side in sides)
    return replace(over_seeds, bootstrap=paired_bootstrap(100 * left, 100 * right))


def oracle_errors(result: Result) -> NDArray[np.float64]:
    """Return the error of the best member on each test example, (N,)."""
    return store.example_errors(result)[1:].min(0)


def top1_errors(result: Result) -> NDArray[np.float64]:
    """Return the error of the ensemble on each test example, (N,)."""
    return store.example_errors(result)[0]

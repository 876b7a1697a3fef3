"""The judgement on several methods that were trained with the same seeds: tables, differences, a recommendation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from typing import Any

from torchmcl.studies import comparison
from torchmcl.studies.statistics import MARGIN, Difference, expected_false, mean_std, paired_seeds
from torchmcl.studies.store import Result
from torchmcl.studies.study import spread, values
from torchmcl.studies.tables import MISSING, Table
from torchmcl.tasks.regression import DENSITIES

SINGLE = "single"  # one network, the unit of cost
METRICS = {  # with their headings and the number of digits
    "oracle_error": ("oracle error, %", 2),
    "top1_error": ("top-1 error, %", 2),
    "oracle_rmse": ("oracle RMSE", 4),
    "rmse": ("RMSE", 4),
    "nll": ("NLL", 3),
    "ece": ("ECE, %", 2),
    "crps": ("CRPS", 4),
}
ERRORS = {"oracle_error": comparison.oracle_errors, "top1_error": comparison.top1_errors}
CAPTION = (
    "Mean ± standard deviation over the seeds, on the test set. Lower is better. cost: operations of a training step, "
    "in units of one network."
)


@dataclass(frozen=True)
class Pair:
    """The difference between two methods in one metric, the first minus the second."""

    one: str
    two: str
    metric: str
    difference: Difference

    @property
    def lower(self) -> bool:
        """Whether the first method has the lower value: clearly over the seeds, and also over the test examples."""
        found = self.difference
        over_examples = found.bootstrap is None or found.bootstrap.high < 0
        return found.clear and found.value < 0 and over_examples

    @property
    def word(self) -> str:
        """The name of the metric in a sentence."""
        return METRICS[self.metric][0].removesuffix(", %")

    @property
    def text(self) -> str:
        """The difference with its interval over the seeds."""
        digits = METRICS[self.metric][1]
        return f"{self.difference.value:+.{digits}f} {self._interval}"

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table."""
        heading, digits = METRICS[self.metric]
        return heading, f"{self.difference.value:+.{digits}f}", self._interval, self.verdict

    @property
    def verdict(self) -> str:
        """Whether the difference is clear, and for errors whether it lies within the margin of equivalence."""
        about = comparison.Comparison(self.one, self.two, self.metric, self.difference).verdict
        return about if self.metric in ERRORS else about.split(", within")[0]

    @property
    def _interval(self) -> str:
        found, digits = self.difference, METRICS[self.metric][1]
        return f"[{found.low:+.{digits}f}, {found.high:+.{digits}f}]" if isfinite(found.low) else MISSING


@dataclass(frozen=True)
class MethodComparison:
    """The results of several methods with the same seeds, on the same data.

    Args:
        data: the name of the data set
        results: the results of each method, one per seed
        costs: the cost of each method in units of one network, or None if it is not known
    """

    data: str
    results: Mapping[str, Sequence[Result]]
    costs: Mapping[str, float | None]

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return [result["seed"] for result in next(iter(self.results.values()))]

    @property
    def metrics(self) -> list[str]:
        """The metrics that all methods have."""
        everything = [result["test"] for results in self.results.values() for result in results]
        return [name for name in METRICS if all(name in test for test in everything)]

    @property
    def headline(self) -> str:
        """The metric of the recommendation: of classes, the error of the ensemble's one answer.

        Of numbers, it is a proper score of the hypotheses with their scores, as in `Regression.monitor`: the RMSE of
        their mean would reject hypotheses that spread over the modes of the targets.
        """
        if "crps" not in self.metrics:
            return "rmse" if "rmse" in self.metrics else "top1_error"
        losses = {result["configuration"].get("loss") for results in self.results.values() for result in results}
        return "nll" if "nll" in self.metrics and losses <= set(DENSITIES.values()) else "crps"

    @property
    def by_cost(self) -> list[str]:
        """The methods, the simplest first: by cost, then one network and independent networks before the others."""
        known = all(value is not None for value in self.costs.values())
        order = {name: (self.costs[name] if known else 0, name != SINGLE, name != "ie") for name in self.results}
        return sorted(self.results, key=lambda name: order[name])

    @property
    def baseline(self) -> str:
        """The method with which the table of differences compares the others."""
        return "ie" if "ie" in self.results else next(iter(self.results))

    @cached_property
    def pairs(self) -> dict[tuple[str, str, str], Pair]:
        """The differences between all pairs of methods in all metrics."""
        found = {}
        for one, first in self.results.items():
            for two, second in self.results.items():
                for metric in self.metrics if one != two else ():
                    found[one, two, metric] = Pair(one, two, metric, _difference(first, second, metric))
        return found

    @property
    def tables(self) -> list[Table]:
        """The table of the methods, and one table of differences per method from the baseline."""
        seeds, test = self.seeds, next(iter(self.results.values()))[0]["examples"]["test"]
        rows = []
        for metric in self.metrics:
            heading, digits = METRICS[metric]
            rows.append((heading, *(spread(values(results, metric), digits) for results in self.results.values())))
        costs = [MISSING if (value := self.costs[name]) is None else f"{value:.1f}" for name in self.results]
        names = ("metric", *(title(name) for name in self.results))
        about = f"{self.data}: {test:,} test examples, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
        tables = [Table(about, names, [*rows, ("cost", *costs)], CAPTION)]
        for name in self.results:
            if name != self.baseline:
                cells = [self.pairs[name, self.baseline, metric].cells for metric in self.metrics]
                columns = ("difference", "mean", "95 % interval", "verdict")
                tables.append(Table(f"{title(name)} minus {title(self.baseline)}", columns, cells))
        return [*tables[:-1], replace(tables[-1], caption=self._chance())] if len(seeds) >= comparison.SEEDS else tables

    def _chance(self) -> str:
        count = (len(self.results) - 1) * len(self.metrics)
        expected = expected_false(count, len(self.seeds))
        return (
            "Paired by seed. clear: the sign-flip test has p < 0.05 and the interval excludes 0. If nothing differed, "
            f"at most {expected:.1f} of {count} differences would be clear by chance."
        )

    @property
    def recommendation(self) -> str:
        """What to use, from the intervals of the `headline` metric.

        A method is preferred to a simpler one only if this metric is clearly lower over the seeds, and if the interval
        over the test examples excludes 0 as well.
        """
        if (count := len(self.seeds)) < (least := comparison.SEEDS):
            return (
                f"No recommendation: a clear statement needs at least {least} seeds, and there "
                f"{'is' if count == 1 else 'are'} {count}. Repeat the command with --seeds {least}; finished runs are "
                "kept."
            )
        best, *others = self.by_cost
        for name in others:
            if self.pairs[name, best, self.headline].lower:
                best = name
        others = [name for name in self.results if name != best]
        beaten = [name for name in others if self.pairs[best, name, self.headline].lower]
        parts = [self._beaten(best, name) if name in beaten else self._not_lower(best, name) for name in others]
        return f"Use {title(best)}: {'; '.join(parts)}."

    def _beaten(self, best: str, name: str) -> str:
        pair, mean = self.pairs[best, name, self.headline], self.pairs.get((name, best, "rmse"))
        text = f"its {pair.word} is clearly lower than that of {title(name)} ({pair.text})"
        if mean is None or not mean.lower:
            return text
        return f"{text}, although the RMSE of its mean is higher ({self.pairs[best, name, 'rmse'].text})"

    def _not_lower(self, best: str, name: str) -> str:
        pair, oracle = self.pairs[name, best, self.headline], self.pairs.get((name, best, "oracle_error"))
        text = f"the {pair.word} of {title(name)} is not clearly lower ({pair.text})"
        if pair.difference.clear and pair.difference.value < 0:
            text = (
                f"the {pair.word} of {title(name)} is lower with these test examples ({pair.text}), but there are too "
                "few of them to say so of others"
            )
        return text if oracle is None or not oracle.lower else f"{text}, although its oracle error is ({oracle.text})"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for compare.json."""
        rows = {
            name: {
                "cost": self.costs[name],
                **{
                    metric: dict(zip(("mean", "deviation"), mean_std(found), strict=True)) | {"seeds": found}
                    for metric in self.metrics
                    for found in [values(results, metric)]
                },
            }
            for name, results in self.results.items()
        }
        pairs = [
            {"one": one, "two": two, "metric": metric, **_plain(pair.difference), "verdict": pair.verdict}
            for (one, two, metric), pair in self.pairs.items()
        ]
        about = {"data": self.data, "seeds": self.seeds, "margin": MARGIN, "methods": rows, "differences": pairs}
        return {**about, "recommendation": self.recommendation}


def title(method: str) -> str:
    """Return the name of a method in a table.

    >>> title("single"), title("amcl")
    ('one network', 'amcl')
    """
    return "one network" if method == SINGLE else method


def _difference(one: Sequence[Result], two: Sequence[Result], metric: str) -> Difference:
    if metric in ERRORS and (found := comparison.paired_difference(one, two, ERRORS[metric])) is not None:
        return found
    return paired_seeds(values(one, metric), values(two, metric))


def _plain(found: Difference) -> dict[str, Any]:
    """Return a difference as values for JSON, which has no infinity."""
    numbers = {"mean": found.value, "low": found.low, "high": found.high, "p_sign_flip": found.p_sign_flip}
    numbers |= {"p_t": found.p_t, "seeds": found.seeds}
    over_examples = None if found.bootstrap is None else found.bootstrap._asdict()
    return {name: value if isfinite(value) else None for name, value in numbers.items()} | {
        "over_test_examples": over_examples
    }

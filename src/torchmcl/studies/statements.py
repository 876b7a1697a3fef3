"""The statements of Kim et al. 2022, judged by the stored results of studies.

Most statements say that one configuration has a lower error than others. Such a statement *holds* if all of these
differences are clear and negative. It *does not hold* if one of them is clear and positive, or lies within the margin
of equivalence without being clear; one such difference is enough, whatever the others are. Other statements say that a
quantity lies in a range; such a statement holds if the t interval over the seeds lies inside this range, and does not
hold if it lies outside. Otherwise, a statement is *not judged* if results are missing, if members do not fit their
training examples, or with fewer than six seeds, and *not clear* if all of its differences are judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Literal

from torchmcl.studies import comparison
from torchmcl.studies.comparison import SEEDS, Comparison
from torchmcl.studies.published import find
from torchmcl.studies.scales import NETWORKS
from torchmcl.studies.show import show
from torchmcl.studies.statistics import Interval, expected_false, holm, paired_seeds
from torchmcl.studies.study import Results
from torchmcl.studies.tables import MISSING, Table

FILE = "statements.md"  # the table, in the folder of the results
Verdict = Literal["holds", "does not hold", "not clear", "not judged"]
COLUMNS = ("statement", "paper", "published", "here", "95 % interval", "p (Holm)", "seeds", "verdict", "study")
Quantity = Callable[[Results], list[float]]
PublishedRow = Mapping[str, Any]  # the values that select a published row; "table" names another table than the study's


@dataclass(frozen=True)
class Judged:
    """The verdict on a statement, and the numbers behind it as text."""

    verdict: Verdict
    published: str = MISSING
    here: str = MISSING
    interval: str = MISSING
    seeds: int = 0
    p_t: float | None = None  # of a judged statement about differences, the largest p-value of their paired t tests


@dataclass(frozen=True)
class Lower:
    """A statement that the first configuration of each pair has a lower error than the second one.

    Args:
        text: the statement
        place: where the paper makes it
        study: name of the study
        error: the error that is compared, oracle or top-1
        pairs: for each difference, such as "amcl minus ie", the two published rows; networks have their published names
        scale: scale of the study
    """

    text: str
    place: str
    study: str
    error: str
    pairs: Mapping[str, tuple[PublishedRow, PublishedRow]]
    scale: str = "standard"

    def judge(self, results: Results, comparisons: Sequence[Comparison]) -> Judged:
        """Judge the statement; the numbers are those of the largest difference on which the verdict rests."""
        pairs = {_with_network(name, results.scale.name): rows for name, rows in self.pairs.items()}
        found = [one for one in comparisons if one.error == self.error and one.name in pairs]
        verdict = verdict_on(found, expected=len(pairs))
        if not found:
            return Judged(verdict)
        judged = [one for one in found if one.judged]
        worst = max(found if verdict == "not judged" else judged, key=lambda one: one.difference.value)
        published = " and ".join(self._published(row) for row in pairs[worst.name])
        numbers, interval = f"{worst.name}: {worst.difference.value:+.2f}", comparison.bounds(worst.difference)
        p_t = None if verdict == "not judged" else max(one.difference.p_t for one in judged)
        return Judged(verdict, published, numbers, interval, worst.difference.seeds, p_t)

    def _published(self, row: PublishedRow) -> str:
        values = {name: value for name, value in row.items() if name != "table"}
        published = find(row.get("table", self.study), **values)
        return MISSING if published is None else f"{published.oracle if self.error == 'oracle' else published.top1:g}"


@dataclass(frozen=True)
class Within:
    """A statement that a quantity lies between `low` and `high`.

    Args:
        text: the statement
        place: where the paper makes it
        study: name of the study
        quantity: function that returns the quantity for each seed
        low: lower bound
        high: upper bound
        published: what the paper reports
        scale: scale of the study
    """

    text: str
    place: str
    study: str
    quantity: Quantity
    low: float = -inf
    high: float = inf
    published: str = MISSING
    scale: str = "standard"

    def judge(self, results: Results, comparisons: Sequence[Comparison]) -> Judged:
        """Judge the statement by the t interval over the seeds."""
        values = self.quantity(results)
        if not values:
            return Judged("not judged", self.published)
        mean = paired_seeds(values, [0.0] * len(values))
        interval = Interval(mean.value, mean.low, mean.high)
        verdict: Verdict = "not clear"
        if len(values) < SEEDS:
            verdict = "not judged"
        elif self.low <= interval.low and interval.high <= self.high:
            verdict = "holds"
        elif interval.high < self.low or self.high < interval.low:
            verdict = "does not hold"
        return Judged(verdict, self.published, f"{mean.value:.2f}", comparison.bounds(mean, signed=False), len(values))


Statement = Lower | Within


def _with_network(name: str, scale: str) -> str:
    """Replace a published network at the beginning of a difference's name by the network that the scale uses."""
    published = name.partition(",")[0]
    return name.replace(published, NETWORKS.get(scale, {}).get(published, {}).get("network", published), 1)


def verdict_on(differences: Sequence[Comparison], *, expected: int) -> Verdict:
    """Return the verdict on a statement that rests on `expected` differences, all of which should be negative.

    >>> lower = Comparison("amcl", "ie", "oracle", paired_seeds([2, 2, 2, 3, 3, 1], [3, 4, 3, 5, 4, 3]))
    >>> verdict_on([lower], expected=1), verdict_on([lower], expected=2)
    ('holds', 'not judged')
    """
    judged = [one.difference for one in differences if one.judged]
    if any(part.value > 0 if part.clear else part.equivalent() for part in judged):
        return "does not hold"
    if len(judged) < expected:
        return "not judged"
    return "holds" if all(part.clear for part in judged) else "not clear"


def table(statements: Sequence[Statement], folder: str | Path = "results", scale: str | None = None) -> Table:
    """Judge statements by the stored results in a folder, each at its own scale or all at one `scale`."""
    found, shown = list[tuple[Statement, Judged, str]](), dict[tuple[str, str], Any]()
    for one in statements:
        key = (one.study, scale or one.scale)
        if key not in shown:
            shown[key] = show(*key, results=folder)
        made, results, _ = shown[key]
        found.append((one, one.judge(results, made.comparisons), ", ".join(key)))
    tested = [judged for _, judged, _ in found if judged.p_t is not None]
    adjusted = iter(holm([one.p_t for one in tested if one.p_t is not None]) if tested else [])
    rows = []
    for one, judged, study in found:
        p = MISSING if judged.p_t is None else comparison.p_text(next(adjusted))
        seeds = str(judged.seeds) if judged.seeds else MISSING
        numbers = (judged.published, judged.here, judged.interval, p, seeds, judged.verdict)
        rows.append((one.text, one.place, *numbers, study))
    return Table("Statements of the paper", COLUMNS, rows, caption(tested))


def caption(tested: Sequence[Judged]) -> str:
    """Explain the table, and say how many statements are expected to hold by chance; `tested` are those with p-values.

    A statement holds only if differences are clear and negative, so this is half of `expected_false`.
    """
    text = (
        "Errors in percent, differences in percentage points. here: if a statement rests on several differences, the "
        "largest of them, which is the least favourable one; published: the two errors of the same pair. p (Holm): "
        "the largest p of their paired t tests, corrected for all judged statements about differences. One difference "
        "that is clear and positive, or near zero, is enough for a statement that does not hold."
    )
    if not tested:
        return text
    expected = sum(expected_false(1, one.seeds) for one in tested) / 2
    return f"{text} If nothing differed, at most {expected:.1f} of these {len(tested)} would hold by chance."

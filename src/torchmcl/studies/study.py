from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchmcl.studies import store
from torchmcl.studies.published import Published
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.statistics import Interval, mean_std, paired_bootstrap
from torchmcl.studies.store import Result
from torchmcl.studies.tables import MISSING, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Select = Literal["validation", "test"]


@dataclass(frozen=True)
class Results:
    """What a study's table is made of: its results by hash, and on what choices are made."""

    scale: Scale
    found: Mapping[str, Result]
    select: Select = "validation"

    def of(self, specs: Callable[..., Spec], *arguments: Any, **options: Any) -> list[Result]:
        """The results of one configuration, `specs(*arguments, seed=…, **options)`, over the seeds that are there."""
        made = (specs(*arguments, seed=seed, **options).hash for seed in self.scale.seeds)
        return [self.found[hash] for hash in made if hash in self.found]

    def best(self, candidates: Mapping[Any, list[Result]]) -> Any | None:
        """The candidate of least harmonic mean of oracle and top-1 error, on the validation split or the test set."""
        scores = {
            name: np.mean([result[self.select]["harmonic_mean"] for result in results])
            for name, results in candidates.items()
            if results and all(result[self.select] is not None for result in results)
        }
        return min(scores, key=lambda name: scores[name]) if scores else None

    @property
    def chosen_on(self) -> str:
        """In words."""
        return {"validation": "the validation split", "test": "the TEST set"}[self.select]


@dataclass(frozen=True)
class Study:
    """One table or figure: from scale to runs, and from results to a table, some to a figure too.

    `place` is the path of a file of the user's own.
    """

    name: str
    title: str
    runs: Callable[[Scale], list[Spec]]
    table: Callable[[Results], Table]
    figure: "Callable[[Results], Figure | None] | None" = None
    place: str = ""


def values(results: Sequence[Result], figure: str) -> list[float]:
    """A figure of the test set over seeds."""
    return [result["test"][figure] for result in results]


def spread(numbers: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation for a cell; – where there is nothing.

    >>> spread([1.0, 3.0]), spread([2.0]), spread([])
    ('2.00 ± 1.41', '2.00', '–')
    """
    if not numbers:
        return MISSING
    mean, std = mean_std(numbers)
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def errors(results: Sequence[Result]) -> list[str]:
    """Cells of oracle and top-1 error."""
    return [spread(values(results, "oracle_error")), spread(values(results, "top1_error"))]


def printed(known: Published | None) -> list[str]:
    """Cells of the paper's oracle and top-1 error.

    >>> from torchmcl.studies.published import find
    >>> printed(None), printed(find("ablation", method="ie"))
    (['–', '–'], ['5.10', '10.18'])
    """
    if known is None:
        return [MISSING, MISSING]
    pairs = ((known.oracle, known.oracle_std), (known.top1, known.top1_std))
    return [f"{mean:.2f}" + (f" ± {std:.2f}" if std is not None else "") for mean, std in pairs]


def tick(yes: bool) -> str:
    """A mark, or nothing."""
    return "✓" if yes else ""


def pure(found: Sequence[Result]) -> str:
    """Purity of assignment over seeds; nothing where everyone takes everything, which is neither pure nor mixed.

    >>> pure([{"purity": 90.0, "assigned": [[9, 1], [0, 10]]}]), pure([{"purity": 100.0, "assigned": [[9, 9], [5, 5]]}])
    ('90.0', '')
    """
    if found and all(len(set(members)) == 1 for result in found for members in result["assigned"]):
        return ""
    return spread([result["purity"] for result in found], 1)


def titled(method: str) -> str:
    """A method as it is printed.

    >>> titled("vmcl"), titled("amcl")
    ('vMCL', 'AMCL')
    """
    return {"smcl": "sMCL", "vmcl": "vMCL"}.get(method, method.upper())


def compare(name: str, one: Sequence[Result], other: str, two: Sequence[Result]) -> list[str]:
    """'A minus B: oracle error -1.2 [-1.9, -0.5], …' of the seeds that both have; nothing where there are none.

    Examples are resampled; a test set that is the same for all seeds once, for all of them together.
    """
    said = [
        f"{label} error {difference.value:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"
        + ("" if difference.clear else " (not clear)")
        for label, of in (("oracle", oracle), ("top-1", top1))
        if (difference := paired(one, two, of)) is not None
    ]
    return [f"{name} minus {other}: {', '.join(said)}"] if said else []


def paired(
    one: Sequence[Result], two: Sequence[Result], of: Callable[[Result], "np.ndarray[Any, Any]"]
) -> Interval | None:
    """Difference of two configurations in percent points, paired by seed and example."""
    others = {(result["seed"], result["test_set"]): result for result in two}
    pairs = [(a, others[key]) for a in one if (key := (a["seed"], a["test_set"])) in others]
    if not pairs:
        return None
    stacked = [np.stack([of(pair[side]) for pair in pairs]) for side in (0, 1)] if _one_set(pairs) else None
    if stacked is not None:
        left, right = (side.mean(0) for side in stacked)
    else:
        left, right = (np.concatenate([of(pair[side]) for pair in pairs]) for side in (0, 1))
    return paired_bootstrap(100 * left, 100 * right)


def oracle(result: Result) -> "np.ndarray[Any, Any]":
    """By how much the best member is wrong on each test example, (N,)."""
    return store.wrong(result)[1:].min(0)


def top1(result: Result) -> "np.ndarray[Any, Any]":
    """By how much the ensemble is wrong on each test example, (N,)."""
    return store.wrong(result)[0]


def _one_set(pairs: Sequence[tuple[Result, Result]]) -> bool:
    return len({pair[0]["test_set"] for pair in pairs}) == 1

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchmcl.studies import tuning
from torchmcl.studies.published import Published
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.statistics import mean_std
from torchmcl.studies.store import Result
from torchmcl.studies.tables import MISSING, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Select = Literal["validation", "test"]


@dataclass(frozen=True)
class Results:
    """The stored results of a study."""

    scale: Scale
    by_hash: Mapping[str, Result]  # the key is the hash of the spec
    select: Select = "validation"  # the split on which options such as K are chosen

    def of(self, spec: Callable[..., Spec], *arguments: Any, **options: Any) -> list[Result]:
        """Return the available results of the runs `spec(*arguments, seed=seed, **options)` for all seeds.

        If the scale has a grid, the results are those of the setting that comparisons use (see `tuning.Choice`). The
        list is empty if no setting could be chosen yet.
        """
        return self.by_setting(spec, *arguments, **options)[-1]

    def by_setting(self, spec: Callable[..., Spec], *arguments: Any, **options: Any) -> list[list[Result]]:
        """Return the available results of a configuration with each of its chosen settings; see `of`.

        There are two settings if the one with the smallest validation error does not fit the training examples; the one
        that comparisons use is the last.
        """
        specs = [spec(*arguments, seed=seed, **options) for seed in self.scale.seeds]
        settings: Sequence[tuning.Setting] = [{}]
        if tuning.tuned(specs[0], self.scale):
            choice = tuning.choose(specs, self.scale, self.by_hash)
            settings = [] if choice is None else choice.settings
        hashes = [[tuning.with_setting(one, setting).hash for one in specs] for setting in settings]
        return [[self.by_hash[hash] for hash in own if hash in self.by_hash] for own in hashes] or [[]]

    def best(self, candidates: Mapping[Any, list[Result]]) -> Any | None:
        """Return the candidate with the smallest harmonic mean of oracle and top-1 error on the split `select`."""
        scores = {
            name: np.mean([result[self.select]["harmonic_mean"] for result in results])
            for name, results in candidates.items()
            if results and all(result[self.select] is not None for result in results)
        }
        return min(scores, key=lambda name: scores[name]) if scores else None

    @property
    def chosen_on(self) -> str:
        """A description of the split on which options such as K are chosen."""
        return {"validation": "the validation split", "test": "the TEST set"}[self.select]


@dataclass(frozen=True)
class Study:
    """A study with its runs, its table and an optional figure; `path` is the file of a custom study, or empty."""

    name: str
    title: str
    runs: Callable[[Scale], list[Spec]]
    table: Callable[[Results], Table]
    figure: "Callable[[Results], Figure | None] | None" = None
    path: str = ""


def values(results: Sequence[Result], metric: str) -> list[float]:
    """Return the value of a metric on the test set for each seed."""
    return [result["test"][metric] for result in results]


def spread(numbers: Sequence[float], digits: int = 2) -> str:
    """Format the mean and the standard deviation of numbers as a table cell.

    >>> spread([1.0, 3.0]), spread([2.0]), spread([])
    ('2.00 ± 1.41', '2.00', '–')
    """
    return _mean_std_cell(*mean_std(numbers), digits) if numbers else MISSING


def errors(results: Sequence[Result]) -> list[str]:
    """Return the table cells for the oracle and top-1 errors."""
    return [spread(values(results, "oracle_error")), spread(values(results, "top1_error"))]


PROTOCOL = ("strict oracle", "top-M", "own training", "worst member", "training", "cost", "rate", "decay")


def protocol_columns(scale: Scale) -> tuple[str, ...]:
    """Return the columns that every table of classification has at a scale with a grid."""
    return PROTOCOL if scale.grid else ()


def protocol_cells(results: Results, own: Sequence[Result]) -> list[str]:
    """Return the cells of `protocol_columns` for the results of a row."""
    if not results.scale.grid:
        return []
    if not own:
        return [MISSING] * len(PROTOCOL)
    records, configuration = [result["records"] for result in own], own[0]["configuration"]
    fitted = spread([one["training"]["own_error"] for one in records])
    worst = max(error or 0.0 for one in records for error in one["training"]["own_errors"])
    top_m = [next(value for name, value in sorted(one.items(), reverse=True) if "top_m" in name) for one in records]
    return [
        spread(values(own, "oracle_error_strict")),
        spread(top_m),
        fitted + ("" if tuning.fits(own) else " (not judged)"),
        f"{worst:.2f}",
        spread([one["training"]["top1_error"] for one in records]),
        f"{records[0]['cost']:.1f}",
        f"{configuration['learning_rate']:g}",
        f"{configuration['weight_decay']:g}",
    ]


def published_errors(row: Published | None) -> list[str]:
    """Return the table cells for the published oracle and top-1 errors.

    >>> from torchmcl.studies.published import find
    >>> published_errors(None), published_errors(find("ablation", method="ie"))
    (['–', '–'], ['5.10', '10.18'])
    """
    if row is None:
        return [MISSING, MISSING]
    return [_mean_std_cell(row.oracle, row.oracle_std), _mean_std_cell(row.top1, row.top1_std)]


def _mean_std_cell(mean: float, std: float | None, digits: int = 2) -> str:
    return f"{mean:.{digits}f}" + (f" ± {std:.{digits}f}" if std is not None else "")


def check_mark(value: bool) -> str:
    """Return a check mark if the value is true, otherwise an empty cell."""
    return "✓" if value else ""


def k_cell(k: int | None, *, has_k: bool) -> str:
    """Return the cell for a chosen K: empty for methods without K, and a dash if no K could be chosen.

    >>> k_cell(2, has_k=True), k_cell(None, has_k=True), k_cell(None, has_k=False)
    ('2', '–', '')
    """
    return "" if not has_k else MISSING if k is None else str(k)


def purity_cell(results: Sequence[Result]) -> str:
    """Return the cell for the assignment purity, which is empty if every member takes every example.

    >>> mixed = {"purity": 90.0, "assigned": [[9, 1], [0, 10]]}
    >>> purity_cell([mixed]), purity_cell([{"purity": 100.0, "assigned": [[9, 9], [5, 5]]}])
    ('90.0', '')
    """
    if results and all(len(set(members)) == 1 for result in results for members in result["assigned"]):
        return ""
    return spread([result["purity"] for result in results], 1)


def method_title(method: str) -> str:
    """Return the name of a method as it is printed in papers.

    >>> method_title("vmcl"), method_title("amcl")
    ('vMCL', 'AMCL')
    """
    return {"smcl": "sMCL", "vmcl": "vMCL"}.get(method, method.upper())

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torchmcl.studies import tuning
from torchmcl.studies.published import Published
from torchmcl.studies.scales import Scale
from torchmcl.studies.spec import IN_LABEL, Spec
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

        If the scale has a grid, the results are those of the setting that comparisons use (see `tuning`). The list is
        empty if no setting could be chosen yet.
        """
        specs = [spec(*arguments, seed=seed, **options) for seed in self.scale.seeds]
        if not tuning.tuned(specs[0], self.scale):
            return self.with_setting(specs, {})
        choice = tuning.choose(specs, self.scale, self.by_hash)
        return [] if choice is None else self.with_setting(specs, choice.judged)

    def with_setting(self, specs: Sequence[Spec], setting: tuning.Setting) -> list[Result]:
        """Return the available results of runs with a setting of the grid."""
        hashes = [tuning.with_setting(spec, setting).hash for spec in specs]
        return [self.by_hash[hash] for hash in hashes if hash in self.by_hash]

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


ERRORS = ("oracle", "top-1")
PROTOCOL = ("strict oracle", "top-M", "own training", "worst member", "training", "cost", "rate", "decay")
PROTOCOL_CAPTION = (
    "strict oracle: the oracle error if the auxiliary class counts as wrong; top-M: test images whose class is not "
    "among the M most probable ones; own training: error of the members on the training images assigned to them; worst "
    "member: its maximum over members and seeds; training: error of the ensemble on the training images; cost: "
    "operations per training step in units of one network; rate and decay: "
)

RATES = ("seed", "learning_rate", "weight_decay")
WORDS = {"learning_rate": "rate", "weight_decay": "decay", "members": "M =", "k": "K ="}  # words of tables for options


def protocol_caption(scale: Scale) -> str:
    """Explain the columns `PROTOCOL`."""
    return PROTOCOL_CAPTION + ("chosen on the validation split." if scale.grid else "not tuned.")


def error_columns(scale: Scale) -> tuple[str, ...]:
    """Return the columns of `error_cells`: oracle and top-1 and, at `standard` and `scratch`, those of `PROTOCOL`."""
    return (*ERRORS, *PROTOCOL) if scale.protocol else ERRORS


def error_cells(scale: Scale, own: Sequence[Result]) -> list[str]:
    """Return the cells for the errors of a row and, at `standard` and `scratch`, how it was trained."""
    if not scale.protocol:
        return errors(own)
    if not own:
        return [MISSING] * len(error_columns(scale))
    records, configuration = [result["records"] for result in own], own[0]["configuration"]
    fitted = spread([one["training"]["own_error"] for one in records])
    worst = max(error or 0.0 for one in records for error in one["training"]["own_errors"])
    top_m = [next(value for name, value in sorted(one.items(), reverse=True) if "top_m" in name) for one in records]
    return [
        *errors(own),
        spread(values(own, "oracle_error_strict")),
        spread(top_m),
        fitted + ("" if tuning.fits(own) else " (not judged)"),
        f"{worst:.2f}",
        spread([one["training"]["top1_error"] for one in records]),
        f"{records[0]['cost']:.1f}",
        f"{configuration['learning_rate']:g}",
        f"{configuration['weight_decay']:g}",
    ]


def mask_columns(scale: Scale) -> tuple[str, ...]:
    """Return the columns of `mask_cells`."""
    return ("training", "cost") if scale.records("segmentation") else ()


def mask_cells(scale: Scale, own: Sequence[Result]) -> list[str]:
    """Return, for masks at the scale `standard`, the cells for the ensemble's training error and the cost."""
    if not mask_columns(scale) or not own:
        return [MISSING] * len(mask_columns(scale))
    records = [result["records"] for result in own]
    return [spread([one["training"]["top1_error"] for one in records]), f"{records[0]['cost']:.1f}"]


def member_errors(results: Results, specs: Sequence[Spec]) -> Table:
    """Return a table of each member's error on the training examples assigned to it, one row per run of the study."""
    rows = []
    for spec in tuning.final(specs, results.scale, results.by_hash):
        record = results.by_hash.get(spec.hash, {"records": {}})["records"].get("training", {})
        if "own_errors" in record:
            cells = [MISSING if error is None else f"{error:.2f}" for error in record["own_errors"]]
            rows.append([row_name(spec, specs), *(f"{spec.options.get(option, '')}" for option in RATES), *cells])
    members = max((len(row) - 1 - len(RATES) for row in rows), default=0)
    columns = ("run", *(WORDS.get(option, option) for option in RATES), *(f"member {m + 1}" for m in range(members)))
    padded = [[*row, *[""] * (len(columns) - len(row))] for row in rows]
    about = f"Percent of the training examples assigned to each member. {MISSING}: a member without examples."
    return Table("Training error of each member", columns, padded, about)


def tuning_notes(results: Results, specs: Sequence[Spec]) -> list[str]:
    """Return a note for each configuration whose best setting on the validation split does not fit the training set."""
    notes = []
    for group in tuning.configurations(specs):
        choice = tuning.choose(group, results.scale, results.by_hash) if tuning.tuned(group[0], results.scale) else None
        if choice is None or choice.fitting == choice.best:
            continue
        name = row_name(group[0], specs)
        if choice.fitting is None:
            notes.append(f"{name}: with no setting of the grid do the members fit their training examples.")
            continue
        own = results.with_setting(group, choice.best)
        oracle, top1 = errors(own)
        fitted = spread([result["records"]["training"]["own_error"] for result in own])
        chosen = ", ".join(f"{WORDS.get(option, option)} {value:g}" for option, value in choice.best.items())
        notes.append(
            f"{name}: the best setting on the validation split ({chosen}) has oracle error {oracle}, top-1 error "
            f"{top1} and own training error {fitted}, and does not fit. The table shows the best setting that does."
        )
    return notes


def row_name(spec: Spec, specs: Sequence[Spec]) -> str:
    """Return a name for a run of a study: its method, and those of its options in which the study's runs differ.

    >>> specs = [Spec({"method": "ie", "members": m, "network": "resnet18"}) for m in (1, 5, 10)]
    >>> [row_name(spec, specs) for spec in specs]
    ['one network', 'ie, M = 5', 'ie, M = 10']
    """
    own = {name: value for name in IN_LABEL if (value := spec.options.get(name)) is not None}
    differ = [name for name in own if any(one.options.get(name, own[name]) != own[name] for one in specs)]
    first = str(spec.options["method"])
    if own.get("members") == 1:
        first, differ = "one network", [name for name in differ if name != "members"]
    return ", ".join([first, *(f"{WORDS.get(name, name)} {own[name]}" for name in differ)])


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

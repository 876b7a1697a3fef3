"""Verification of stored results: tables are derived again from results, and results from stored weights."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchmcl.errors import DamagedFileError, TorchmclError
from torchmcl.studies import NAMES, paper, scales, statements, tables, weights
from torchmcl.studies.reevaluation import Reevaluation, needs
from torchmcl.studies.show import show
from torchmcl.studies.store import Result, Store


@dataclass
class Check:
    """The outcome of verifying one study at one scale.

    Args:
        study: name of the study
        scale: name of the scale
        results: number of results that were read; each has a valid checksum and errors that match its bits
        weights: number of results that were computed again from stored weights
        changed: number of predictions and values that changed within the tolerance (see `tolerance`)
        needs: the data sets and packages that evaluating the stored weights needs
        problems: what is wrong, one line each
        skipped: why weights or records could not be evaluated here, with the number of runs
    """

    study: str
    scale: str
    results: int = 0
    weights: int = 0
    changed: int = 0
    needs: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def verify(
    names: Sequence[str],
    sizes: Sequence[str],
    results: str | Path = "results",
    *,
    evaluated: bool = True,
    exact: bool = False,
) -> Iterator[Check]:
    """Verify the stored results of studies, and yield one `Check` per study and scale that has results or a table.

    With all built-in studies and all scales, the table of the paper's statements is verified as well, if it is stored.

    Args:
        names: names of studies
        sizes: names of scales
        results: folder of the results
        evaluated: whether to evaluate stored weights
        exact: whether no prediction or value may change, as on the machine and with the versions of the runs
    """
    results = Path(results)
    evaluate = Reevaluation(exact) if evaluated else None
    for name in names:
        for size in sizes:
            if any((results / name / size).glob("*.json")) or (results / name / f"{size}.md").is_file():
                yield _verified(Check(name, size), _verify, results, evaluate)
    complete = set(NAMES) <= set(names) and set(scales.NAMES) <= set(sizes)
    if complete and (results / statements.FILE).is_file():
        yield _verified(Check("statements", tables.MISSING), _verify_statements, results)


def _verified(check: Check, function: Callable[..., None], *arguments: Any) -> Check:
    try:
        function(check, *arguments)
    except TorchmclError as problem:
        check.problems.append(str(problem))
    return check


def _verify_statements(check: Check, results: Path) -> None:
    table = statements.table(paper.STATEMENTS, results)
    _verify_table(check, results / statements.FILE, tables.markdown(table))


def _verify_table(check: Check, path: Path, expected: str) -> None:
    if not path.is_file():
        check.problems.append(f"The table {path} is missing.")
    elif path.read_text(encoding="utf-8") != expected:
        check.problems.append(f"The table {path} differs from the stored results.")


def _verify(check: Check, results: Path, evaluate: Reevaluation | None) -> None:
    stored = Store(results).read(check.study, check.scale)
    check.results = len(stored)
    table = show(check.study, check.scale, results=results)[0]
    where = f" --results {shlex.quote(str(results))}"  # in the note of an incomplete table
    table = replace(table, notes=[note.replace(where, "") for note in table.notes])
    for ending, write in ((".md", tables.markdown), (".tex", tables.latex)):
        _verify_table(check, results / check.study / f"{check.scale}{ending}", write(table))
    check.problems += weights.compare_with_list(results, check.study, check.scale, stored)
    for hash, result in stored.items():
        if (stated := f"{result.get('study')}/{result.get('scale')}") != f"{check.study}/{check.scale}":
            own = results / check.study / check.scale / f"{hash}.json"
            check.problems.append(f"The result {own} states that it belongs to {stated}.")
        if evaluate is not None and (file := weights.find(results, check.scale, hash)) is not None:
            _verify_weights(check, evaluate, file, result)


def _verify_weights(check: Check, evaluate: Reevaluation, path: Path, result: Result) -> None:
    check.needs = sorted({*check.needs, *needs(result)})
    try:
        found = evaluate(path, result)
    except DamagedFileError:
        raise
    except TorchmclError as problem:  # the data or a package is missing
        check.skipped[str(problem)] += 1
        return
    check.weights += 1
    check.changed += found.changed
    check.problems += [f"{path}: {problem}" for problem in found.problems]
    check.skipped.update(found.skipped)

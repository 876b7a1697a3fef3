"""Verification of stored results: tables are derived again from stored errors, and errors from stored weights."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchmcl.errors import DamagedFileError, TorchmclError, UsageError
from torchmcl.studies import NAMES, paper, scales, statements, tables, weights
from torchmcl.studies.execute import load as load_data
from torchmcl.studies.execute import predict
from torchmcl.studies.records import Trained, require_labels
from torchmcl.studies.show import show
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, Store, example_errors

MARGIN = 1e-3  # predictions whose two largest probabilities differ by less may change on another machine


@dataclass
class Check:
    """The outcome of verifying one study at one scale.

    Args:
        study: name of the study
        scale: name of the scale
        results: number of results that were read; each has a valid checksum and errors that match its bits
        weights: number of results that were computed again from stored weights
        changed: number of predictions that changed, all of them between two almost equally probable classes
        problems: what is wrong, one line each
        skipped: what could not be verified here and what it needs, one line each
    """

    study: str
    scale: str
    results: int = 0
    weights: int = 0
    changed: int = 0
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def verify(
    names: Sequence[str], sizes: Sequence[str], results: str | Path = "results", *, evaluated: bool = True
) -> Iterator[Check]:
    """Verify the stored results of studies, and yield one `Check` per study and scale that has results or a table.

    With all built-in studies and all scales, the table of the paper's statements is verified as well, if it is stored.

    Args:
        names: names of studies
        sizes: names of scales
        results: folder of the results
        evaluated: whether to evaluate stored weights
    """
    results = Path(results)
    for name in names:
        for size in sizes:
            if any((results / name / size).glob("*.json")) or (results / name / f"{size}.md").is_file():
                yield _verified(Check(name, size), _verify, results, evaluated)
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


def _verify(check: Check, results: Path, evaluated: bool) -> None:
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
        if evaluated and (file := weights.find(results, check.scale, hash)) is not None:
            _verify_weights(check, file, result)


def _verify_weights(check: Check, path: Path, result: Result) -> None:
    try:
        trained = evaluate(path, result)
    except DamagedFileError:
        raise
    except TorchmclError as problem:  # the data or a package is missing
        check.skipped.append(f"{path.name}: {problem}")
        return
    check.weights += 1
    changed, unexplained = compare(trained, result)
    check.changed += changed
    if unexplained:
        check.problems.append(f"{path}: {unexplained} of {trained.wrong.numel():,} predictions differ from the result.")


def evaluate(path: Path, result: Result) -> Trained:
    """Evaluate stored weights on the test set of a result."""
    specialists = weights.read_weights(path)
    test = load_data(Spec(result["configuration"])).test
    if test.fingerprint != result["test_set"]:
        raise UsageError("The test set differs from the one of the result. Use the same data.")
    return predict(specialists, test, path.parent)


def compare(trained: Trained, result: Result) -> tuple[int, int]:
    """Return how many errors differ from the stored ones, and how many of them are not due to a small `MARGIN`."""
    expected = torch.from_numpy(example_errors(result))
    if trained.combined is None:  # masks, or numbers in units of their own
        limit = MARGIN * expected.mean() if trained.examples.continuous else MARGIN
        different = (trained.wrong.double() - expected).abs() > limit
        return int(different.sum()), int(different.sum())
    classes = trained.combined.shape[1]
    members = require_labels(trained.members)[:, :, :classes]
    different = trained.wrong.double() != expected
    close = torch.cat([margin(part) < MARGIN for part in (trained.combined[None], members)])
    return int(different.sum()), int((different & ~close).sum())


def margin(probabilities: Tensor) -> Tensor:
    """Return the difference between the two largest probabilities, (M, N, C) -> (M, N)."""
    first, second = probabilities.topk(2, dim=2).values.unbind(2)
    return first - second

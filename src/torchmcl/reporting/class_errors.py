"""The values of the table of errors per class: the error of the ensemble, and of the members that own the class."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchmcl.analysis.figures.catalogue import Evaluation
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.reporting.metric_descriptions import NONE

MAX_OWNERS = 3  # more owners of a class are only counted


COLUMNS = {
    "error": "Percentage of the test examples of the class on which the ensemble's answer is wrong; for masks, "
    "percentage of pixels.",
    "owner": "The members that own the class: those that take its examples in training.",
    "owner's error": "The error of the members that own the class on its test examples, averaged over these members.",
}


def class_tables(runs: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return one table per set of classes, with the runs that have these classes, for test sets with labels.

    A run whose members do not specialise has only the column of the ensemble's error.
    """
    together: dict[tuple[str, ...], list[RunEvaluation]] = {}
    for run in runs:
        if isinstance(run, RunEvaluation) and run.examples.labels.ndim == 1:
            together.setdefault(tuple(run.examples.label_names), []).append(run)
    return [
        {
            "runs": group,
            "columns": [
                (run, name, text)
                for run in group
                for name, text in COLUMNS.items()
                if name == "error" or run.specialised
            ],
            "rows": _rows(names, group),
        }
        for names, group in together.items()
    ]


def _rows(names: Sequence[str], runs: Sequence[RunEvaluation]) -> list[dict[str, Any]]:
    rows = []
    for c, name in enumerate(names):
        count = int((runs[0].examples.labels == c).sum())
        if count:
            rows.append({"name": name, "count": count, "cells": [cell for run in runs for cell in _cells(run, c)]})
    return rows


def _cells(run: RunEvaluation, c: int) -> list[dict[str, Any]]:
    """Return the error of the ensemble on a class and, for specialists, the owners and their mean error."""
    examples = run.examples.labels == c
    if not bool(examples.any()):
        return [{"text": NONE, "part": 0}] * (3 if run.specialised else 1)
    error = _error(run.test.get("wrong")[examples])
    if not run.specialised or run.owners is None:
        return [error]
    owners = run.owners[c].nonzero().flatten().tolist()
    if not owners:
        return [error, {"text": "none", "part": 0}, {"text": NONE, "part": 0}]
    names = ", ".join(str(m + 1) for m in owners) if len(owners) <= MAX_OWNERS else f"{len(owners)} members"
    return [error, {"text": names, "part": 0}, _error(run.test.get("errors")[examples][:, owners])]


def _error(wrong: Tensor) -> dict[str, Any]:
    percent = 100 * float(wrong.mean())
    return {"text": f"{percent:.1f} %", "part": percent}

"""Figures as tables for a terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

COMPARED = ("accuracy", "ece", "nll", "brier")


def of(found: Sequence[dict[str, Any]]) -> "Iterator[Table]":
    """What `evaluate_run` found of one run, or of several beside each other."""
    for metrics in found if len(found) == 1 else ():
        yield of_run(metrics)
    for metrics in found:
        if "unseen" in metrics:
            yield of_scores(metrics)
    if len(found) > 1:
        yield comparison(found)


def of_run(metrics: dict[str, Any]) -> "Table":
    """Every figure that is one number, and the members'."""
    table = _table(f"{metrics['run']} on {metrics['data']}: {metrics['examples']} examples", ("figure", "value"))
    for name, value in metrics.items():
        if isinstance(value, int | float):
            table.add_row(name, f"{value:g}")
        elif name == "members":
            table.add_row("members' errors", "  ".join(f"{error:.2f}" for error in value))
        elif name == "rejection":
            for inside, number in value.items():
                table.add_row(f"rejection: {inside}", "none" if number is None else f"{number:g}")
    return table


def of_scores(metrics: dict[str, Any]) -> "Table":
    """How well each score tells unseen data; FPR95 is the part of the known lost where 95 % of the unseen are found."""
    unseen = metrics["unseen"]
    title = f"{metrics['run']}: {metrics['data']} against {unseen['examples']} examples of {unseen['data']}"
    table = _table(title, ("score (higher: more foreign)", "AUROC", "AUPR", "FPR95"))
    for name, row in unseen["scores"].items():
        best = "bold" if name == unseen["best"] else ""
        table.add_row(name, *(f"{row[figure]:.2f}" for figure in ("auroc", "aupr", "fpr95")), style=best)
    return table


def comparison(found: Sequence[dict[str, Any]]) -> "Table":
    """Runs beside each other, each with the score that tells unseen data best."""
    named = [name for name in COMPARED if all(name in metrics for metrics in found)]
    unseen = ("best score", "AUROC", "AUPR", "FPR95") if all("unseen" in each for each in found) else ()
    table = _table("the runs compared", ("run", "method", *named, *unseen))
    for metrics in found:
        cells = [metrics["run"], metrics["method"], *(f"{metrics[name]:.3f}" for name in named)]
        if unseen:
            best = metrics["unseen"]["best"]
            row = metrics["unseen"]["scores"][best]
            cells += [best, *(f"{row[figure]:.2f}" for figure in ("auroc", "aupr", "fpr95"))]
        table.add_row(*cells)
    return table


def _table(title: str, headings: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        words = heading in ("figure", "run", "method", "best score") or heading.startswith("score")
        table.add_column(heading, justify="left" if words else "right", overflow="fold")
    return table

"""Tables of metrics for the terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

COMPARED = ("accuracy", "oracle_rmse", "rmse", "crps", "ece", "nll", "brier")
LISTS = {"members": "members' errors", "winners": "closest hypothesis, %"}  # metrics with one value per member
UNSEEN_COLUMNS = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95", "accepted95": "accepted"}


def metric_tables(results: Sequence[dict[str, Any]]) -> "Iterator[Table]":
    """Yield the tables of one run, or of several runs side by side, from the results of `evaluate_run`."""
    if len(results) == 1:
        yield run_table(results[0])
    for metrics in results:
        if "unseen" in metrics:
            yield unseen_table(metrics)
    if len(results) > 1:
        yield comparison(results)


def run_table(metrics: dict[str, Any]) -> "Table":
    """List every scalar metric and the metrics of each member."""
    table = _table(f"{metrics['run']} on {metrics['data']}: {metrics['examples']} examples", ("metric", "value"))
    for name, value in metrics.items():
        if isinstance(value, int | float):
            table.add_row(name, f"{value:g}")
        elif name in LISTS:
            form = ".4g" if "rmse" in metrics else ".2f"
            table.add_row(LISTS[name], "  ".join(f"{error:{form}}" for error in value))
        elif name == "density":
            table.add_row(name, value)
        elif name in ("rejection", "routing"):
            for inside, number in value.items():
                table.add_row(f"{name}: {inside}", "none" if number is None else f"{number:g}")
    return table


def unseen_table(metrics: dict[str, Any]) -> "Table":
    """Show how well each score detects unseen data.

    FPR95 is the false positive rate at a 95 % true positive rate. The last column is the share of the unseen examples
    that are accepted if 95 % of the test set is.
    """
    unseen = metrics["unseen"]
    title = f"{metrics['run']}: {metrics['data']} against {unseen['examples']} examples of {unseen['data']}"
    table = _table(title, ("score (higher: more likely unseen)", *UNSEEN_COLUMNS.values()))
    for name, row in unseen["scores"].items():
        best = "bold" if name == unseen["best"] else ""
        table.add_row(name, *(f"{row[metric]:.2f}" for metric in UNSEEN_COLUMNS), style=best)
    return table


def comparison(results: Sequence[dict[str, Any]]) -> "Table":
    """Show runs side by side, each with the score that detects unseen data best."""
    names = [name for name in COMPARED if all(name in metrics for metrics in results)]
    unseen = ("best score", *UNSEEN_COLUMNS.values()) if all("unseen" in metrics for metrics in results) else ()
    table = _table("comparison of the runs", ("run", "method", *names, *unseen))
    for metrics in results:
        cells = [
            metrics["run"],
            metrics["method"],
            *(f"{metrics[name]:.{'4g' if 'rmse' in metrics else '3f'}}" for name in names),
        ]
        if unseen:
            best = metrics["unseen"]["best"]
            cells += [best, *(f"{metrics['unseen']['scores'][best][metric]:.2f}" for metric in UNSEEN_COLUMNS)]
        table.add_row(*cells)
    return table


def _table(title: str, headings: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        is_text = heading in ("metric", "run", "method", "best score") or heading.startswith("score")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    return table

"""Tables of metrics for the terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

LABELS = {  # the words of the table and, for fractions, the unit
    "accuracy": "accuracy, %",
    "oracle_error": "oracle error, %",
    "oracle_error_strict": "strict oracle error, %",
    "top1_error": "top-1 error, %",
    "harmonic_mean": "harmonic mean, %",
    "disagreement": "disagreement, %",
    "ece": "ECE, %",
    "nll": "NLL",
    "brier": "Brier score",
    "aurc": "AURC, %",
    "unclaimed": "unclaimed, %",
    "missed": "no owner queried, %",
    "oracle_rmse": "oracle RMSE",
    "rmse": "RMSE",
    "crps": "CRPS",
    "coverage": "coverage, %",
    "accepted_error": "accepted error, %",
    "error": "error, %",
    "members": "members' errors",
    "winners": "closest hypothesis, %",
}
ABOUT = ("run", "data")  # in the title or the heading
INSIDE = ("rejection", "routing")  # with metrics of their own
UNSEEN_COLUMNS = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95", "accepted95": "accepted"}
NOTHING = "–"  # noqa: RUF001


def metric_tables(results: Sequence[dict[str, Any]]) -> "Iterator[Table]":
    """Yield the tables of one or several runs, from the results of `evaluate_run`."""
    yield runs_table(results)
    for metrics in results:
        if "unseen" in metrics:
            yield unseen_table(metrics)


def runs_table(results: Sequence[dict[str, Any]]) -> "Table":
    """List every metric in one row, with one column per run."""
    first = results[0]
    columns = [rows(metrics) for metrics in results]
    title, headings = f"{first['run']} on {first['data']}: {first['examples']} examples", ["value"]
    if len(results) > 1:
        data = dict.fromkeys(metrics["data"] for metrics in results)
        title, headings = f"Comparison on {' and '.join(data)}", [metrics["run"] for metrics in results]
    table = _table(title, ("metric", *headings))
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(name, *(column.get(name, NOTHING) for column in columns))
    return table


def rows(metrics: dict[str, Any]) -> dict[str, str]:
    """Return the scalar metrics of a run and those of its members as text.

    >>> rows({"method": "ie", "top1_error": 7.5, "members": [8.0, 9.5], "rejection": {"error": 2.0}})
    {'method': 'ie', 'top-1 error, %': '7.50', "members' errors, %": '8.0  9.5', 'rejection: error, %': '2.00'}
    """
    found, plain = dict[str, str](), "rmse" in metrics
    for name, value in metrics.items():
        if name in INSIDE:
            found |= {f"{name}: {label(inside)}": cell(inside, number, plain) for inside, number in value.items()}
        elif name in ("members", "winners"):
            form, unit = (".4g", "") if plain and name == "members" else (".1f", ", %" if name == "members" else "")
            found[LABELS[name] + unit] = "  ".join(f"{number:{form}}" for number in value)
        elif name not in ABOUT and isinstance(value, int | float | str):
            found[label(name)] = cell(name, value, plain)
    return found


def label(name: str) -> str:
    """Return the words for a metric."""
    return LABELS.get(name, name.replace("_", " "))


def cell(name: str, value: Any, plain: bool) -> str:
    """Format a value: fractions in percent with two digits, others with four; or, if `plain`, four significant ones."""
    if value is None or isinstance(value, str):
        return value or NOTHING
    if isinstance(value, int) or plain:
        return f"{value:.4g}" if isinstance(value, float) else f"{value}"
    return f"{value:.2f}" if label(name).endswith("%") else f"{value:.4f}"


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


def _table(title: str, headings: Sequence[str]) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in headings:
        is_text = heading == "metric" or heading.startswith("score")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    return table

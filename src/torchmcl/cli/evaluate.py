"""Evaluate trained runs on their test set or another data set, and optionally their detection of unseen data."""

import json
from pathlib import Path
from typing import Any

from torchmcl.cli.options import add_option, add_query, add_runs, data_config


def add_arguments(parser: Any) -> None:
    """Add the arguments for the runs, the data and the output format."""
    add_runs(parser)
    add_query(parser)
    add_option(parser, "json", "print JSON", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import evaluate_run

    source = data_config(options)
    given = {name: options[name] for name in ("unseen", "unseen_classes", "query", "budget")}
    metrics = [evaluate_run(Path(run), options["data"], source, **given) for run in options["runs"]]
    if options["json"]:
        print(json.dumps(metrics if len(metrics) > 1 else metrics[0], indent=1))
        return 0

    from rich.console import Console

    from torchmcl.cli.metric_tables import metric_tables

    for table in metric_tables(metrics):
        Console().print(table)
    return 0

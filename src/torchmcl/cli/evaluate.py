"""Measure trained runs, on their own test set unless another is named, and against unseen data."""

import json
from pathlib import Path
from typing import Any

from torchmcl.cli.options import add_runs, data_config


def add_arguments(parser: Any) -> None:
    """Which runs, on which data, and how it is printed."""
    add_runs(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import evaluate_run

    source = data_config(options)
    unseen = {"unseen": options["unseen"], "unseen_classes": options["unseen_classes"]}
    found = [evaluate_run(Path(run), options["data"], source, **unseen) for run in options["runs"]]
    if options["json"]:
        print(json.dumps(found if len(found) > 1 else found[0], indent=1))
        return 0
    from rich.console import Console

    from torchmcl.cli import metric_tables

    for table in metric_tables.of(found):
        Console(width=max(Console().width, 100)).print(table)
    return 0

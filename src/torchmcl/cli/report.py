"""Write a self-contained HTML report on a trained run, or a report that compares several runs."""

from typing import Any

from torchmcl._utils.console import say
from torchmcl.cli.options import add_runs, evaluation_options


def add_arguments(parser: Any) -> None:
    """Add the arguments for the runs, the data and the output file."""
    add_runs(parser, limit=True)
    parser.add_argument("-o", "--out", type=str, default="report.html", help="file to write")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl import reporting

    path = reporting.write(options["runs"], options["out"], **evaluation_options(options))
    say(f"The report was written to {path} ({path.stat().st_size / 1e6:.1f} MB). Open it in a browser.")
    return 0

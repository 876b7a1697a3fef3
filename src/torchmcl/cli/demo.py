"""The demo: train AMCL and its baselines on scikit-learn's digits, compare them and write a report."""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchmcl import metrics, reporting
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl.errors import TorchmclError
from torchmcl.training import fit

COMPARED = ("ie", "smcl", "cmcl", "vmcl", "amcl")
WARMUP = 5  # the published number of warm-up epochs, used if the run is long enough
CAPTION = (
    "Oracle error: fraction of the examples that every member misclassifies.\n"
    "Share: fraction of the assignments in the last epoch that went to a member.\n"
    "Purity: fraction of these assignments that went to the member that took the example's class most often."
)


def comparison(results: dict[str, dict[str, Any]]) -> Table:
    """Build a table of percentages with one row per method."""
    table = Table(title="Digits, test set (percent)", caption=CAPTION, caption_justify="left")
    for heading in ("method", "oracle error", "top-1 error", "each member's error", "share each takes", "purity"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, values in results.items():
        table.add_row(
            name,
            f"{values['oracle_error']:.2f}",
            f"{values['top1_error']:.2f}",
            *("  ".join(f"{value:2.0f}" for value in values[key]) for key in ("members", "share")),
            f"{100 * float(metrics.purity(torch.tensor(values['assigned']))):.0f}",  # with k = 1 for every method
        )
    return table


def assignment_table(values: dict[str, Any]) -> Table:
    """Build a table of the percentage of each class that each member took."""
    table = Table(title="AMCL: which member took which digit (percent)")
    table.add_column("digit", justify="right")
    for m in range(len(values["members"])):
        table.add_column(f"member {m + 1}", justify="right")
    for digit, row in enumerate(values["assigned"]):
        table.add_row(str(digit), *(f"[bold green]{100 * n / sum(row):.0f}[/]" if n else "." for n in row))
    return table


def method_options(method: str, epochs: int) -> dict[str, Any]:
    """Return the options of a method: AMCL's warm-up has the published number of epochs unless the run is short.

    >>> method_options("amcl", 30), method_options("amcl", 3), method_options("ie", 30)
    ({'warmup': 5}, {'warmup': '5%'}, {})
    """
    return {"warmup": WARMUP if epochs > 2 * WARMUP else "5%"} if method == "amcl" else {}


def write_report(runs: list[Path], out: Path) -> str:
    """Write a report on the runs, and return a line that says where the report is or why it was not written."""
    try:
        return f"Open in a browser: {reporting.write(runs, out)}"
    except TorchmclError as problem:
        return f"The report was not written. {problem}"


def main(arguments: list[str] | None = None) -> int:
    """Train, print the comparison and AMCL's assignment table, and write a report."""
    parser = argparse.ArgumentParser(prog="python -m torchmcl.cli.demo", description=__doc__)
    parser.add_argument("--members", type=int, default=5, help="number of networks in each ensemble (default 5)")
    parser.add_argument("--epochs", type=int, default=30, help="number of epochs per run (default 30)")
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed for the weights and the order of the examples (default 0)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs (default runs/demo)")
    parser.add_argument("--quiet", action="store_true", help="print only the results, not the progress of training")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    results = {}
    for name in COMPARED:
        if not options.quiet:
            console.rule(f"training {name}", align="left")
        run = options.out / name
        given = {
            "members": options.members,
            "epochs": options.epochs,
            "seed": options.seed,
            "verbose": not options.quiet,
        }
        given |= method_options(name, options.epochs)
        try:
            fit(name, "simple_cnn", "digits", k=1, width=16, out=run, overwrite=True, **given)
        except TorchmclError as problem:
            print(f"torchmcl.cli.demo: {problem}", file=sys.stderr)
            return 2
        results[name] = json.loads((run / "metrics.json").read_text())
    console.print(comparison(results))
    console.print(assignment_table(results["amcl"]))
    report = write_report([options.out / name for name in results], options.out / "report.html")
    console.print(report, soft_wrap=True, markup=False)
    next_command = f"torchmcl evaluate {shlex.quote(str(options.out / 'amcl'))}"
    console.print(f"The runs are saved in {options.out}. Next:\n  {next_command}", soft_wrap=True, markup=False)
    return 0


if __name__ == "__main__":
    with keep_freed_memory():
        sys.exit(main())

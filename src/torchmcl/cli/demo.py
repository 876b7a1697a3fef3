"""The main job on embedded data: train AMCL and its baselines on scikit-learn's digits, and compare them."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchmcl import metrics
from torchmcl._utils.allocator import keep_freed_memory
from torchmcl.errors import TorchmclError
from torchmcl.training import fit

COMPARED = ("ie", "smcl", "cmcl", "vmcl", "amcl")
WARMUP = 5  # epochs of AMCL's, as published, where there are enough of them
CAPTION = (
    "Oracle error: every member is wrong. Share: of the training set, in the last epoch.\n"
    "Purity: of that, what went to the member that took most of the class."
)


def comparison(results: dict[str, dict[str, Any]]) -> Table:
    """One row a method, in percent."""
    table = Table(title="Digits, test set (percent)", caption=CAPTION, caption_justify="left")
    for heading in ("method", "oracle error", "top-1 error", "each member's error", "share each takes", "purity"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, values in results.items():
        table.add_row(
            name,
            f"{values['oracle_error']:.2f}",
            f"{values['top1_error']:.2f}",
            whole_numbers(values["members"]),
            whole_numbers(values["share"]),
            f"{100 * float(metrics.purity(torch.tensor(values['assigned']))):.0f}",  # for every method alike, k = 1
        )
    return table


def matrix(values: dict[str, Any]) -> Table:
    """Who takes which class, in percent of the class."""
    table = Table(title="AMCL: who took which digit (percent)")
    table.add_column("digit", justify="right")
    for m in range(len(values["members"])):
        table.add_column(f"member {m + 1}", justify="right")
    for digit, row in enumerate(values["assigned"]):
        table.add_row(str(digit), *(f"[bold green]{100 * n / sum(row):.0f}[/]" if n else "." for n in row))
    return table


def whole_numbers(values: list[float]) -> str:
    """Numbers beside each other.

    >>> whole_numbers([3.2, 71.0])
    ' 3  71'
    """
    return "  ".join(f"{value:2.0f}" for value in values)


def warmup(epochs: int) -> int | str:
    """AMCL's warm-up: the published number of epochs, or the default share of a short training.

    >>> warmup(30), warmup(3)
    (5, '5%')
    """
    return WARMUP if epochs > 2 * WARMUP else "5%"


def written(runs: list[Path], out: Path) -> str:
    """Write a report of the runs -> a line on where it is, or on what it needs."""
    from torchmcl import reporting

    try:
        return f"Open in a browser: {reporting.write(runs, out)}"
    except TorchmclError as problem:
        return f"No report. {problem}"


def main(arguments: list[str] | None = None) -> int:
    """Train, then print the comparison and AMCL's class-by-member matrix, and write a report of all."""
    parser = argparse.ArgumentParser(prog="python -m torchmcl.cli.demo", description=__doc__)
    parser.add_argument("--members", type=int, default=5, help="networks in each ensemble (default 5)")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of each training (default 30)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order (default 0)")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the runs (default runs/demo)")
    parser.add_argument("--quiet", action="store_true", help="show results, not the progress of the trainings")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    results = {}
    for name in COMPARED:
        if not options.quiet:
            console.rule(f"training {name}", align="left")
        run = options.out / name
        own: dict[str, Any] = {"warmup": warmup(options.epochs)} if name == "amcl" else {}
        try:
            fit(
                name,
                "simple_cnn",
                "digits",
                k=1,
                width=16,
                members=options.members,
                epochs=options.epochs,
                seed=options.seed,
                out=run,
                overwrite=True,
                verbose=not options.quiet,
                **own,
            )
        except TorchmclError as problem:
            print(f"torchmcl.cli.demo: {problem}", file=sys.stderr)
            return 2
        results[name] = json.loads((run / "metrics.json").read_text())
    console.print(comparison(results))
    console.print(matrix(results["amcl"]))
    said = written([options.out / name for name in results], options.out / "report.html")
    console.print(said, soft_wrap=True, markup=False)
    console.print(f"The runs are kept in {options.out}. Look: torchmcl evaluate {options.out}/amcl")
    return 0


if __name__ == "__main__":
    with keep_freed_memory():
        sys.exit(main())

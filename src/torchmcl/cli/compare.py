"""Train several methods with the same seeds on your data, compare them and recommend one."""

import shlex
import sys
from pathlib import Path
from typing import Any

from torchmcl._utils.console import say
from torchmcl.cli.options import add_option
from torchmcl.cli.train import add_training
from torchmcl.errors import TorchmclError, UsageError

EXAMPLE = "torchmcl compare --data folder:photos --methods ie,amcl --seeds 6 --out compare"
EXAMPLES = {
    EXAMPLE: "AMCL and an independent ensemble, on your images",
    "torchmcl compare --methods single,ie,amcl --epochs 20 --out runs/digits": (
        "one network, an independent ensemble and AMCL, on the embedded digits"
    ),
}


def add_arguments(parser: Any) -> None:
    """Add the methods, the seeds, the options of training that all methods share, and the folder."""
    parser.add_argument("--config", action="config", help="YAML file with options")
    group = parser.add_argument_group("comparison")
    about = "methods to compare, separated by commas; single is one network. An option of a method is passed to those"
    add_option(group, "methods", f"{about} that have it", str, "ie,amcl")
    add_option(group, "seeds", "number of seeds per method; a clear statement needs at least 6", int, 6)
    add_option(group, "out", "folder for the runs, compare.json and report.html; to continue, repeat the command")
    add_option(group, "parallel", "number of parallel runs; 0 trains in this process, one run at a time", int, 0)
    add_option(group, "quiet", "print only the results", bool)
    add_training(parser, compared=True)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl._utils.logs import verbosity
    from torchmcl.studies import compare_methods as comparing
    from torchmcl.studies import runner
    from torchmcl.studies.method_comparison import title
    from torchmcl.training.job_summary import data_lines

    options = {name: value for name, value in options.items() if name != "config"}
    names = [name.strip() for name in options.pop("methods").split(",")]
    seeds, out, parallel, quiet = (options.pop(name) for name in ("seeds", "out", "parallel", "quiet"))
    if out is None:
        raise UsageError(f"Choose a folder for the runs with --out. Try: {EXAMPLE}")
    out = Path(out)
    specs = comparing.plan(names, seeds, options)
    comparing.check_folders(specs, out)
    with verbosity(not quiet):
        data = comparing.load_data(specs)
    if not quiet:
        runs = f"{sum(map(len, specs.values()))} runs of {', '.join(map(title, names))}"
        say("\n".join([*data_lines(data), f"Runs: {runs}"]))
    try:
        chosen = runner.local_runner(parallel)
        found = comparing.compare_methods(specs, data, out, runner=chosen, verbose=not quiet)
    except KeyboardInterrupt:
        print("\ntorchmcl: All runs stopped and were saved. Repeat the command to continue.", file=sys.stderr)
        return 130
    show(found)
    first = [out / runs[0].folder for runs in specs.values()]
    say(f"\nWrote {out / 'compare.json'}.")
    say(write_report(first, out / "report.html"))
    return 0


def show(found: Any) -> None:
    """Print the tables and the recommendation."""
    from torchmcl.studies.tables import print_table

    for table in found.tables:
        print_table(table)
    say(found.recommendation)


def write_report(runs: list[Path], path: Path) -> str:
    """Write a report on the runs of the first seed, and return a line on it or on why it was not written."""
    from torchmcl import reporting

    try:
        reporting.write(runs, path)
    except TorchmclError as problem:
        command = f"torchmcl report {shlex.join(map(str, runs))} -o {shlex.quote(str(path))}"
        return f"The report was not written. {problem} To write it:\n  {command}"
    return f"The report on the runs with seed 0 is in {path}. Open it in a browser."

"""Reproduce the paper's tables and figures: list, run, show and verify studies, and estimate their cost."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from textwrap import fill
from typing import Any

from torchmcl._utils import imports
from torchmcl.cli.options import add_import, add_option
from torchmcl.errors import UsageError


def add_arguments(parser: Any) -> None:
    """Add the actions and their options."""
    from jsonargparse import ArgumentParser

    from torchmcl.studies import names, scales

    actions = parser.add_subcommands(required=True)
    for action, function in ACTIONS.items():
        own = ArgumentParser(exit_on_error=False, description=fill(function.__doc__ or ""))
        if action == "statements":
            add_option(own, "scale", "judge all statements at this scale, such as paper; by default, each at its own")
            add_option(own, "results", "folder for the results", str, "results")
            add_import(own)
            actions.add_subcommand(action, own, help=function.__doc__)
            own.prog = f"{parser.prog} {action}"
            continue
        required = action in ("run", "show")
        about = f"one or more of {', '.join(names())}, or files with your own studies, such as ./my_study.py"
        about += "" if required else "; by default, all"
        own.add_argument("names", type=str, nargs="+" if required else "*", help=about)
        if action == "verify":
            add_option(own, "scale", f"one of {', '.join(scales.NAMES)}; by default, all")
            about = "require that nothing changes at all, as on the machine and with the versions of the runs"
            own.add_argument("--exact", action="store_true", help=about)
        elif action != "ls":
            scale = "paper" if action == "cost" else "smoke"
            add_option(own, "scale", f"one of {', '.join(scales.NAMES)}", str, scale)
            add_option(own, "seeds", "number of seeds; by default, set by the scale", int)
        if action in ("run", "show", "verify"):
            add_option(own, "results", "folder for the results", str, "results")
        if action == "run":
            add_run_options(own)
        if action == "show":
            add_option(own, "out", "folder to write to; by default, the folder of --results")
            add_option(own, "select", "split on which K is chosen: validation or test", str, "validation")
            about = "also show the training error of each member of each run, on the examples assigned to it"
            own.add_argument("--members", action="store_true", help=about)
        if action == "cost":
            add_option(own, "tflops", "assumed sustained TFLOP/s per GPU", float, 10.0)
            own.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64], help="numbers of GPUs to compare")
        add_import(own)
        actions.add_subcommand(action, own, help=function.__doc__)
        own.prog = f"{parser.prog} {action}"


def add_run_options(parser: Any) -> None:
    """Add the options of `study run`, such as the number of parallel runs and the cluster."""
    add_option(parser, "workers", "number of parallel runs; 0 trains in this process, one run at a time", int, 1)
    add_option(parser, "work", "folder for the run folders", str, "runs/studies")
    about = "number of seeds whose weights are stored next to the results, without frozen weights, for `study verify`"
    add_option(parser, "weights", about, int, 0)
    cluster = parser.add_argument_group(
        "cluster", "These options need the extra torchmcl[cluster]; see docs/cluster.md."
    )
    add_option(cluster, "on", "Ray cluster: ray://HOST:PORT, auto (this node's cluster) or local (a temporary cluster)")
    add_option(cluster, "cpus_per_run", "number of CPUs, and therefore of threads, per run", float, 1)
    about = "number of GPUs per run, or 0.5 if two runs share a GPU; by default 1 if the cluster has GPUs"
    add_option(cluster, "gpus_per_run", about, float)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    action = options["subcommand"]
    return ACTIONS[action](**options[action])


def study_names(words: Sequence[str]) -> list[str]:
    """Return the names of the studies. Studies in Python files are imported and registered first."""
    from torchmcl import studies

    return [studies.load_file(word).name if imports.is_path(word) else word for word in words]


def study_ls(names: list[str]) -> int:
    """List the studies with their number of runs at each scale."""
    from rich.console import Console
    from rich.table import Table

    from torchmcl import studies
    from torchmcl.studies import scales, tuning

    table = Table(box=None, padding=(0, 1), title="Number of runs at each scale", title_justify="left")
    for column in ("study", *scales.NAMES):
        table.add_column(column, no_wrap=True, justify="left" if column == "study" else "right")
    table.add_column("about")
    for name in study_names(names) or studies.names():
        study = studies.load(name)
        sizes = [scales.scale(scale, name) for scale in scales.NAMES]
        counts = [str(tuning.number_of_runs(study.runs(size), size)) for size in sizes]
        table.add_row(f"[bold]{name}[/]", *counts, study.title)
    Console().print(table)
    return 0


def study_run(names: list[str], scale: str, on: str | None, workers: int, **options: Any) -> int:
    """Train the missing runs on this machine or a cluster. To continue after an interruption, repeat the command."""
    from torchmcl.studies import runner
    from torchmcl.studies.cluster import cluster

    studies = study_names(names)
    resources = {"cpus": options.pop("cpus_per_run"), "gpus": options.pop("gpus_per_run")}
    try:
        with nullcontext(runner.local_runner(workers)) if on is None else cluster(on, **resources) as chosen:
            failed = runner.run(studies, scale, runner=chosen, **options)
    except KeyboardInterrupt:
        print("\ntorchmcl: All runs stopped and were saved. Repeat the command to continue.", file=sys.stderr)
        return 130
    if failed:
        raise UsageError(f"{failed} run{'s' * (failed > 1)} failed. See the errors above, and repeat the command.")
    more = "" if options["results"] == "results" else f" --results {shlex.quote(options['results'])}"
    more += imports.options(*filter(imports.is_path, names))
    print(f"Next:\n  torchmcl study show {shlex.join(names)} --scale {scale}{more}")
    return 0


def study_show(
    names: list[str], scale: str, seeds: int | None, results: str, out: str | None, select: str, members: bool
) -> int:
    """Show a study's table next to the published numbers, and write it as Markdown, LaTeX and PNG, without training."""
    from torchmcl.studies import show, tables
    from torchmcl.studies.study import member_errors

    for name in study_names(names):
        shown = show.show(name, scale, results=results, select=select, seeds=seeds)  # type: ignore[arg-type]
        tables.print_table(shown[0])
        if members:
            tables.print_table(member_errors(shown[1], shown[2].runs(shown[1].scale)))
        print("Wrote", *show.write(*shown, out or results), sep="\n  ")
    return 0


def study_statements(scale: str | None, results: str) -> int:
    """Judge the statements of the paper by the stored results, and write them to statements.md."""
    from pathlib import Path

    from torchmcl._utils import atomic
    from torchmcl.errors import known_name
    from torchmcl.studies import paper, scales, statements, tables

    if scale is not None:
        known_name("scale", scale, scales.NAMES)
    table = statements.table(paper.STATEMENTS, results, scale)
    tables.print_table(table)
    if scale is None:
        atomic.make_folder(Path(results))
        atomic.write(Path(results) / statements.FILE, tables.markdown(table))
        print(f"Wrote {Path(results) / statements.FILE}")
    return 0


def study_verify(names: list[str], scale: str | None, results: str, exact: bool) -> int:
    """Derive tables again from stored results, and errors and records from stored weights; fail if they differ."""
    from collections import Counter, defaultdict

    from rich.console import Console
    from rich.table import Table

    from torchmcl import studies
    from torchmcl.errors import known_name
    from torchmcl.studies import scales, verify

    if scale is not None:
        known_name("scale", scale, scales.NAMES)
    columns = ("study", "scale", "results", "from weights", "changed", "verdict")
    table = Table(*columns, box=None, padding=(0, 1))
    lines, skipped, wrong, needs = list[str](), Counter[str](), 0, defaultdict[str, list[str]](list)
    chosen, sizes = study_names(names) or studies.names(), scales.NAMES if scale is None else [scale]
    for check in verify.verify(chosen, sizes, results, exact=exact):
        verdict = "differs" if check.problems else "not complete" if check.skipped else "verified"
        counts = [str(count) for count in (check.results, check.weights, check.changed)]
        table.add_row(check.study, check.scale, *counts, verdict)
        if check.needs:
            needs[", ".join(check.needs)].append(check.study)
        lines += check.problems
        skipped += check.skipped
        wrong += bool(check.problems)
    if not table.row_count:
        raise UsageError(f"There are no results in {results}. Run a study first: torchmcl study run NAME --scale SCALE")
    console = Console()
    console.print(table)
    runs = {cause: f"{count} run{'s' * (count > 1)}" for cause, count in skipped.items()}
    required = (f"Weights of {', '.join(own)}: evaluated with {need}" for need, own in needs.items())
    for line in (
        *lines,
        *required,
        *(f"Not verified for {count} with weights: {cause}" for cause, count in runs.items()),
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    if wrong:
        raise UsageError(f"The results of {wrong} stud{'y' if wrong == 1 else 'ies'} differ from what is stored.")
    return 0


def study_cost(names: list[str], scale: str, seeds: int | None, tflops: float, gpus: list[int]) -> int:
    """Estimate the number of runs, the GPU-hours and the network traffic of studies, without training."""
    from torchmcl.studies import cost, tables

    names = study_names(names)
    tables.print_table(cost.studies_table(names, scale, seeds=seeds, tflops=tflops, gpus=gpus))
    pairs = cost.networks_of(names, scale, seeds=seeds) if names else cost.PAPER_NETWORKS
    tables.print_table(cost.traffic_table(pairs, tflops=tflops, gpus=gpus))
    return 0


ACTIONS: dict[str, Callable[..., int]] = {
    "ls": study_ls,
    "run": study_run,
    "show": study_show,
    "statements": study_statements,
    "verify": study_verify,
    "cost": study_cost,
}

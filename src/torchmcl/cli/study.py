"""The paper's tables and figures: list them, run what is missing, show what is there."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torchmcl._utils import imports
from torchmcl.cli.options import add_import
from torchmcl.errors import UsageError


def add_arguments(parser: Any) -> None:
    """List, run, show, estimate."""
    from jsonargparse import ArgumentParser

    from torchmcl.studies import names, scales

    actions = parser.add_subcommands(required=True)
    for action, does in ACTIONS.items():
        own = ArgumentParser(exit_on_error=False, description=does.__doc__)
        some = action in ("run", "show")
        which = f"out of {', '.join(names())}, or the file of your own, ./my_study.py"
        own.add_argument("names", type=str, nargs="+" if some else "*", help=which + "; all unless given" * (not some))
        if action != "ls":
            usual = "paper" if action == "cost" else "smoke"
            own.add_argument("--scale", type=str, default=usual, help=f"one of {', '.join(scales.NAMES)}")
            own.add_argument("--seeds", type=int | None, default=None, help="how many; the scale's own unless given")
        if action in ("run", "show"):
            own.add_argument("--results", type=str, default="results", help="folder of the results")
        if action == "run":
            own.add_argument("--workers", type=int, default=1, help="runs at a time; 0: one by one in this process")
            own.add_argument("--work", type=str, default="runs/studies", help="folder of the trainings themselves")
            cluster = own.add_argument_group("many machines, with the extra cluster: docs/cluster.md")
            cluster.add_argument(
                "--on", type=str | None, default=None, help="Ray: ray://HOST:PORT, auto (this node's cluster) or local"
            )
            cluster.add_argument("--cpus_per_run", type=float, default=1, help="CPUs of a run, and its threads")
            shared = "GPUs of a run, 0.5: two share one; 1 unless given, where there is one"
            cluster.add_argument("--gpus_per_run", type=float | None, default=None, help=shared)
        if action == "show":
            own.add_argument("--out", type=str | None, default=None, help="folder to write into; that of the results")
            own.add_argument("--select", type=str, default="validation", help="choose K on validation, or on test")
        if action == "cost":
            own.add_argument(
                "--tflops", type=float, default=10.0, help="what a GPU sustains, in TFLOP/s: an assumption"
            )
            own.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64], help="how many, to compare")
        add_import(own)
        actions.add_subcommand(action, own, help=does.__doc__)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    action = options["subcommand"]
    return ACTIONS[action](**options[action])


def study_names(words: Sequence[str]) -> list[str]:
    """The names of studies, those in Python files imported and registered."""
    from torchmcl import studies

    return [studies.load_file(word).name if imports.is_path(word) else word for word in words]


def study_ls(names: list[str]) -> int:
    """List the studies."""
    from rich.console import Console
    from rich.table import Table

    from torchmcl import studies
    from torchmcl.studies import scales

    table = Table("study", "about", *(f"runs: {name}" for name in scales.NAMES), box=None, padding=(0, 2))
    for name in study_names(names) or studies.names():
        study = studies.load(name)
        counts = [str(len(study.runs(scales.scale(scale, name)))) for scale in scales.NAMES]
        table.add_row(f"[bold]{name}[/]", study.title, *counts)
    Console(width=max(Console().width, 140)).print(table)
    return 0


def study_run(
    names: list[str],
    scale: str,
    seeds: int | None,
    results: str,
    work: str,
    workers: int,
    on: str | None,
    cpus_per_run: float,
    gpus_per_run: float | None,
) -> int:
    """Run what is missing of studies, here or on a cluster; stopped and started again, they go on."""
    from torchmcl.studies import runner
    from torchmcl.studies.cluster import cluster

    studies = study_names(names)
    try:
        where = (
            nullcontext(runner.embedded(workers)) if on is None else cluster(on, cpus=cpus_per_run, gpus=gpus_per_run)
        )
        with where as chosen:
            failed = runner.run(studies, scale, runner=chosen, results=results, work=work, seeds=seeds)
    except KeyboardInterrupt:
        print("\ntorchmcl: stopped, everything saved. The same command goes on.", file=sys.stderr)
        return 130
    if failed:
        raise UsageError(f"Expected every run to finish, {failed} failed, as said above. The same command tries again.")
    kept = "" if results == "results" else f" --results {shlex.quote(results)}"
    kept += imports.options(*filter(imports.is_path, names))
    print(f"Look: torchmcl study show {shlex.join(names)} --scale {scale}{kept}")
    return 0


def study_show(names: list[str], scale: str, seeds: int | None, results: str, out: str | None, select: str) -> int:
    """Show a study's table beside the published one, and write it as Markdown, LaTeX and PNG; never trains."""
    from rich.console import Console

    from torchmcl.studies import show, tables

    console = Console(width=max(Console().width, 140))
    for name in study_names(names):
        shown = show.show(name, scale, results=results, select=select, seeds=seeds)  # type: ignore[arg-type]
        console.print(tables.text(shown[0]))
        console.print(f"written: {', '.join(map(str, show.write(*shown, out or results)))}", soft_wrap=True)
    return 0


def study_cost(names: list[str], scale: str, seeds: int | None, tflops: float, gpus: list[int]) -> int:
    """Estimate what studies cost: runs, GPU-hours, traffic of a training over several GPUs; trains nothing."""
    from rich.console import Console

    from torchmcl.studies import cost, tables

    console = Console(width=max(Console().width, 140))
    console.print(tables.text(cost.of_studies(study_names(names), scale, seeds=seeds, tflops=tflops, gpus=gpus)))
    console.print(tables.text(cost.of_traffic(tflops=tflops, gpus=gpus)))
    return 0


ACTIONS: dict[str, Callable[..., int]] = {"ls": study_ls, "run": study_run, "show": study_show, "cost": study_cost}

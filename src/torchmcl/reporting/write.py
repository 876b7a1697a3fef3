import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchmcl._utils import atomic
from torchmcl.analysis import style
from torchmcl.analysis.evaluation import run_evaluation
from torchmcl.errors import UsageError
from torchmcl.reporting.command import report_command
from torchmcl.reporting.page import page


def write(
    runs: Sequence[str | Path], out: str | Path = "report.html", *, unseen: str | None = None, **options: Any
) -> Path:
    """Write one self-contained HTML page on one or several runs.

    Args:
        runs: the folders of the runs
        out: the file to write
        unseen: the unseen data to evaluate on, see `torchmcl.analysis.evaluation.evaluate_run`
        **options: the other options of `torchmcl.analysis.evaluation.run_evaluation`

    Returns:
        The path of the page.

    Raises:
        UsageError: if a run cannot be evaluated, the file cannot be written, or matplotlib is not installed.
    """
    path = Path(out)
    if not runs:
        raise UsageError("A report needs at least one run. Pass the folder of a run.")
    if path.is_dir():
        raise UsageError(f"Cannot write the report to {path}: it is a folder. Use -o {path / 'report.html'}.")
    parent = next(part for part in (path.absolute().parent, *path.absolute().parents) if part.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        problem = "permission denied" if parent.is_dir() else "it is not a folder"
        raise UsageError(f"Cannot write to {parent}: {problem}. Choose another file with -o.")
    style.new()  # raises an error early if matplotlib is not installed
    evaluations = [run_evaluation(run, unseen=unseen, **options) for run in runs]
    text = page(evaluations, made_by=report_command(runs, out, unseen=unseen, **options))
    atomic.make_folder(path.parent)
    atomic.write(path, text)
    return path

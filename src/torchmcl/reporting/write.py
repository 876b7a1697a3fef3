import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchmcl._utils import atomic
from torchmcl.analysis.evaluation import run_evaluation
from torchmcl.errors import UsageError
from torchmcl.reporting.page import page
from torchmcl.serialization.data_config import DataConfig


def write(
    runs: Sequence[str | Path], out: str | Path = "report.html", *, unseen: str | None = None, **options: Any
) -> Path:
    """Write one self-contained page on some runs, compared with each other where there are several -> its path.

    `unseen` and the other options are those of `run_evaluation`.
    """
    path = Path(out)
    if not runs:
        raise UsageError("Expected the folder of at least one run, got none.")
    if path.is_dir():
        raise UsageError(f"Expected a file for the report, got the folder {path}. Try: -o {path / 'report.html'}")
    parent = next(part for part in (path.absolute().parent, *path.absolute().parents) if part.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"Expected to be allowed to write into {parent}, am not. Choose another -o.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as absent:
        raise UsageError("Expected matplotlib for a report, found none. Try: pip install 'torchmcl[plots]'") from absent
    evaluations = [run_evaluation(run, unseen=unseen, **options) for run in runs]
    text = page(evaluations, made_by=line(runs, out, unseen=unseen, **options))
    atomic.make_folder(path.parent)
    atomic.write(path, text)
    return path


def line(runs: Sequence[str | Path], out: str | Path, *, source: DataConfig | None = None, **options: Any) -> str:
    """The command that writes a report.

    >>> line(["runs/a"], "a.html", source=DataConfig(limit=9), unseen="svhn", data=None)
    'torchmcl report runs/a -o a.html --unseen svhn --data_limit 9'
    """
    chosen, usual = asdict(source or DataConfig()), asdict(DataConfig())
    options |= {f"data_{name}": value for name, value in chosen.items() if value != usual[name]}
    words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
    return shlex.join(["torchmcl", "report", *map(str, runs), "-o", str(out), *words])

import csv
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from torchmcl._utils.console import duration, paused, write
from torchmcl._utils.logs import emit
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result

LOGGER = logging.getLogger("torchmcl.studies")


class StudyProgress:
    """Report the progress of a study: one line per finished run and, on a terminal, a table of the current runs.

    Lines are logged to `torchmcl.studies`.

    Args:
        specs: The runs of the study.
        work: The folder that contains the run folders.
        later: The number of runs that follow these, for the estimate of the remaining time.
        verbose: Show the table and the lines on the console.
    """

    def __init__(self, specs: Sequence[Spec], work: Path, *, later: int = 0, verbose: bool = True) -> None:
        self.console, self.verbose = Console(highlight=False), verbose
        self.total, self.later, self.work = len(specs), later, work
        self.start = time.monotonic()
        self.began: dict[Spec, float] = {}
        self.epochs: dict[Spec, int] = {}
        self.finished: list[tuple[Spec, str, str]] = []
        self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=1, transient=True)

    def __enter__(self) -> "StudyProgress":
        """Show the table if the console is a terminal."""
        if self.total and self.verbose and self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the table."""
        self.live.stop()

    def update(self, spec: Spec, what: str, result: Result | None, reason: str, epochs: int) -> None:
        """Report an event; see `Event` for the arguments."""
        if what == "started":
            self.began[spec] = time.monotonic()
            if reason:
                self.line(f"{spec.label}: started again because {reason}", logging.WARNING)
            return
        if what == "trained":
            self.epochs[spec] = epochs
            return
        seconds = time.monotonic() - self.began.pop(spec, time.monotonic())
        about = reason
        if result is not None:
            about = errors(result["test"])
        self.finished.append((spec, what, about))
        line = f"{len(self.finished)}/{self.total}  {spec.label}: {what}, {about}  ({duration(seconds)}{self.left()})"
        self.line(line, logging.ERROR if what == "failed" else logging.INFO)

    def left(self) -> str:
        """Return an estimate of the remaining time, if a run has finished: the others take as long on average."""
        waiting = self.total - len(self.finished) + self.later
        if not self.finished or not waiting:
            return ""
        return f"; about {duration((time.monotonic() - self.start) / len(self.finished) * waiting)} left"

    def line(self, text: str, level: int) -> None:
        """Log a message, and print it above the table if `verbose` is set."""
        with paused(self.live, self.live.is_started):
            emit(LOGGER, level, text, self._print if self.verbose else None)

    def _print(self, text: str) -> None:
        write(self.console, text)

    def table(self) -> Table:
        """Return the table of the current runs, with the numbers of finished, waiting and failed runs in its title."""
        failed = sum(what == "failed" for _, what, _ in self.finished)
        waiting = self.total - len(self.finished) - len(self.began)
        title = f"{len(self.finished) - failed} of {self.total} done, {len(self.began)} running, {waiting} waiting"
        title += (f", {failed} failed" if failed else "") + self.left()
        table = Table(title=title, title_justify="left")
        for column in ("run", "progress", "epoch", "time"):
            table.add_column(column, no_wrap=column != "run")
        for spec, began in list(self.began.items()):
            count, total = self.epochs.get(spec) or logged_epochs(self.work / spec.folder), spec.configuration["epochs"]
            bar = ProgressBar(total, count, width=20)
            table.add_row(Text(spec.label), bar, f"{count} of {total}", duration(time.monotonic() - began))
        return table


def logged_epochs(run: Path) -> int:
    """Return the number of epochs in the log of a run folder, or 0 if there is no log.

    >>> logged_epochs(Path("nowhere"))
    0
    """
    try:
        with open(run / "log.csv") as log:
            return sum(1 for _ in csv.DictReader(log))
    except OSError:
        return 0


def errors(test: Mapping[str, Any]) -> str:
    """Describe the errors on the test set.

    >>> errors({"oracle_error": 1.0, "top1_error": 2.0}), errors({"oracle_rmse": 0.12, "rmse": 1.0})
    ('oracle error 1.00 %, top-1 error 2.00 %', 'oracle RMSE 0.12, RMSE 1')
    """
    if "rmse" in test:
        return f"oracle RMSE {test['oracle_rmse']:.4g}, RMSE {test['rmse']:.4g}"
    return f"oracle error {test['oracle_error']:.2f} %, top-1 error {test['top1_error']:.2f} %"

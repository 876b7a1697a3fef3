import logging
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torchmcl._utils.console import duration, paused, write
from torchmcl._utils.logs import emit

LOGGER = logging.getLogger("torchmcl.training")


class Expectation:
    """The expected time of a run, from the steps of its first seconds.

    The first step is not counted, because it also starts up the devices. The validation is not counted either.
    """

    def __init__(self, *, after: float = 3.0) -> None:
        self.after, self.start = after, 0.0
        self.steps, self.left = -1, 0
        self.known = False

    def begin(self, epoch: int, epochs: int, done: int, total: int | None) -> None:
        """Start an epoch with `done` of `total` steps; without a total, nothing is expected."""
        if not self.known and self.steps < 0:
            self.left = 0 if total is None else (epochs - epoch + 1) * total - done

    def step(self) -> float | None:
        """Count a step. Return the expected remaining seconds once, when enough steps have been timed."""
        if self.known or not self.left:
            return None
        self.steps, self.left, now = self.steps + 1, self.left - 1, time.monotonic()
        if not self.steps:
            self.start = now
        elif now - self.start >= self.after:
            self.known = True
            return (now - self.start) / self.steps * self.left
        return None


class TrainingProgress:
    """Report the progress of a training run: a bar for the current epoch, one line per epoch, and warnings.

    Lines are logged to `torchmcl.training`, with a level of at most `level`. If `verbose` is set, the lines are also
    printed to the console, and the bar is shown if the console is a terminal. Only the process with rank 0 writes lines
    and shows the bar.
    """

    def __init__(self, *, verbose: bool = True, rank: int = 0, level: int = logging.WARNING) -> None:
        self.rank, self.verbose, self.level = rank, verbose and rank == 0, level
        self.console = Console(quiet=not self.verbose, highlight=False, stderr=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[about]}"),
        )
        shown = self.console.is_terminal and self.verbose
        self.progress = Progress(*columns, console=self.console, transient=True, disable=not shown)
        self.updated = 0.0
        self.clock = Expectation()
        self.task = self.progress.add_task("", total=1, about="", visible=False)

    def __enter__(self) -> "TrainingProgress":
        """Show the bar."""
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the bar."""
        self.progress.stop()

    def begin(self, epoch: int, epochs: int, done: int, total: int | None) -> None:
        """Start the bar for an epoch. `total` is the number of batches, or None if the number is unknown."""
        self.progress.reset(
            self.task, description=f"epoch {epoch}/{epochs}", completed=done, total=total, about="", visible=True
        )
        self.progress.tasks[0].total = total  # reset ignores total=None
        self.clock.begin(epoch, epochs, done, total)

    def step(self, loss: torch.Tensor, taken: torch.Tensor, phase: str) -> None:
        """Advance the bar by one batch. `loss` and `taken` (groups, M) are read at most four times per second."""
        if (seconds := self.clock.step()) is not None:
            self.line(f"Expected time: about {duration(seconds)}")
        if self.progress.disable:
            return
        if time.monotonic() - self.updated > 0.25:
            self.updated = time.monotonic()
            share = taken.sum(0)
            parts = " ".join(f"{100 * part:.0f}" for part in (share / share.sum().clamp_min(1e-9)).tolist())
            self.progress.update(self.task, about=f"loss {float(loss.detach()):.3f}  shares {parts}  {phase}")
        self.progress.advance(self.task)

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Log a message, and print it above the bar if `verbose` is set."""
        if self.rank == 0:
            with paused(self.progress, self.progress.live.is_started):
                emit(LOGGER, min(level, self.level), text, self._print if self.verbose else None)

    def _print(self, text: str) -> None:
        write(self.console, text)

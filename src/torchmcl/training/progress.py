import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torchmcl._utils.logs import emit

LOGGER = logging.getLogger("torchmcl.training")


class TrainingProgress:
    """Reports on a training: a bar for the epoch, a line after each epoch, warnings.

    Lines are records of the logger `torchmcl.training` and, with `verbose`, are shown on the console. The bar appears
    only on a terminal. Of several processes, only the first one (`rank` 0) reports. No record has more than `level`.
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
        self.shown = 0.0
        self.task = self.progress.add_task("", total=1, about="", visible=False)

    def __enter__(self) -> "TrainingProgress":
        """Show the bar."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it away, whatever happened."""
        self.progress.stop()

    def begin(self, epoch: int, epochs: int, done: int, total: int | None) -> None:
        """A new epoch of `total` batches, None if that is not known."""
        self.progress.reset(
            self.task, description=f"epoch {epoch}/{epochs}", completed=done, total=total, about="", visible=True
        )
        self.progress.tasks[0].total = total  # where it is None, reset would keep the one before

    def step(self, loss: torch.Tensor, taken: torch.Tensor, phase: str) -> None:
        """One batch more; loss and taken (groups, M) are looked at four times a second, not oftener."""
        if self.progress.disable:
            return
        if time.monotonic() - self.shown > 0.25:
            self.shown = time.monotonic()
            share = taken.sum(0)
            parts = " ".join(f"{100 * part:.0f}" for part in (share / share.sum().clamp_min(1e-9)).tolist())
            self.progress.update(self.task, about=f"loss {float(loss.detach()):.3f}  shares {parts}  {phase}")
        self.progress.advance(self.task)

    def line(self, text: str, level: int = logging.INFO) -> None:
        """Report a line above the bar."""
        if self.rank == 0:
            with self._without_bar():
                emit(LOGGER, min(level, self.level), text, self._print if self.verbose else None)

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def _without_bar(self) -> Iterator[None]:
        """Take the bar away for a moment: a handler of the caller's may write to the same terminal."""
        running = self.progress.live.is_started
        if running:
            self.progress.stop()
        try:
            yield
        finally:
            if running:
                self.progress.start()

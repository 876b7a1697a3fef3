import time
from types import TracebackType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Screen:
    """What a person sees of a training: a bar for the epoch, a line after each, warnings as they come.

    The bar appears on a terminal only; `quiet` shows nothing at all.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False, stderr=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[about]}"),
        )
        shown = self.console.is_terminal and not quiet
        self.progress = Progress(*columns, console=self.console, transient=True, disable=not shown)
        self.shown = 0.0
        self.task = self.progress.add_task("", total=1, about="", visible=False)

    def __enter__(self) -> "Screen":
        """Show the bar."""
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take it away, whatever happened."""
        self.progress.stop()

    def begin(self, epoch: int, epochs: int, done: int, total: int) -> None:
        """A new epoch."""
        self.progress.reset(
            self.task, description=f"epoch {epoch}/{epochs}", completed=done, total=total, about="", visible=True
        )

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

    def line(self, text: str) -> None:
        """Something to keep."""
        self.console.print(text, markup=False, soft_wrap=True)

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress


@contextmanager
def paused(display: "Live | Progress", running: bool) -> Iterator[None]:
    """Hide a display, if it is `running`, while a line is written, because logging may use the same terminal."""
    if running:
        display.stop()
    try:
        yield
    finally:
        if running:
            display.start()


def shortened(names: Sequence[str], limit: int = 5) -> str:
    """Join at most `limit` names.

    >>> shortened(["a", "b", "c"], 2)
    'a, b, …'
    """
    return ", ".join([*names[:limit], *(["…"] if len(names) > limit else [])])


def duration(seconds: float) -> str:
    """Format a number of seconds.

    >>> duration(3.21), duration(200), duration(7300)
    ('3.2 s', '3 min 20 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def say(text: str) -> None:
    """Print sentences, wrapped between words on a terminal and in one line elsewhere."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(text, markup=False, soft_wrap=not console.is_terminal)


@contextmanager
def progress_bar(text: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if it is a terminal; call the function that is yielded to advance it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda count: bar.update(task, completed=min(bar.tasks[0].completed + count, total))

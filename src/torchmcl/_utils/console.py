import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
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

    write(Console(highlight=False), text)


def write(console: "Console", text: str) -> None:
    """Print text to a console, wrapped between words on a terminal and as it is elsewhere."""
    text = wrapped(text, console.width) if console.is_terminal else text
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_error(text: str) -> None:
    """Print a message on standard error, wrapped between words on a terminal and in one line elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    print(wrapped(text, console.width) if console.is_terminal else text, file=sys.stderr)


def wrapped(text: str, width: int) -> str:
    """Break each line that is longer than `width`, but not between a number and its percent sign.

    A command keeps a line of its own, which is never broken, so that it can be pasted.

    >>> print(wrapped("epoch 1/2  loss 0.5  validation: top-1 error 4.97 %  shares 20 20", 52))
    epoch 1/2  loss 0.5  validation: top-1 error 4.97 %
      shares 20 20
    >>> print(wrapped("Choose a folder with --out. Try: torchmcl train --data digits --out runs/first", 40))
    Choose a folder with --out. Try:
      torchmcl train --data digits --out runs/first
    """
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    if len(line) <= width or line.startswith("  torchmcl "):
        return [line]
    words, colon, command = line.partition(": torchmcl ")
    kept = f"{words}{colon[:1]}".replace(" %", "\N{NO-BREAK SPACE}%")
    lines = wrap(kept, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [part.replace("\N{NO-BREAK SPACE}%", " %") for part in lines] + ([f"  torchmcl {command}"] if colon else [])


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

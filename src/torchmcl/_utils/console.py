from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress


def wide_console(least: int) -> "Console":
    """Return a console with at least `least` columns, for tables that would be cut off in a narrow terminal."""
    from rich.console import Console

    return Console(width=max(Console().width, least))


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

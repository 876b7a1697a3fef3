from collections.abc import Iterator
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

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


class Interrupted(Exception):  # noqa: N818
    """A signal ended training, after everything was saved where a folder keeps the run."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Stop:
    """Notes a signal that asks a training to stop, and puts the caller's handlers back afterwards.

    Only the main thread of a process may handle signals; a training in another thread handles none.
    """

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM."""
        here = current_thread() is main_thread()
        before = {one: signal.signal(one, self._note) for one in (signal.SIGINT, signal.SIGTERM) if here}
        try:
            yield
        finally:
            for one, handler in before.items():
                if handler is not None:  # one that was not installed from Python cannot be put back from Python
                    signal.signal(one, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number:  # asked twice: at once
            raise KeyboardInterrupt
        self.number = number

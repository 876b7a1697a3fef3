import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType


class Interrupted(Exception):  # noqa: N818
    """Raised if a signal stops a run. A run with a folder can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Stop:
    """Record a signal that requests the end of training. `number` is 0 until a signal arrives.

    Python handles signals only in the main thread, so training in another thread records none.
    """

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record SIGINT and SIGTERM, and restore the previous handlers afterwards."""
        in_main_thread = current_thread() is main_thread()
        before = {one: signal.signal(one, self._record) for one in (signal.SIGINT, signal.SIGTERM) if in_main_thread}
        try:
            yield
        finally:
            for one, handler in before.items():
                if handler is not None:  # Python cannot restore a handler that was installed from C
                    signal.signal(one, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.number:  # a second signal stops the run at once
            raise KeyboardInterrupt
        self.number = number

"""Lines about progress: always records of Python's `logging`, and on the console if the caller wants to see them.

Each line appears on the console once. If a handler of the caller's writes records of torchmcl to the console, that
handler shows the line, in the caller's format; otherwise `verbose` prints it.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Whether to show progress, for parts that no argument reaches, such as a download while data is loaded.
VERBOSE: ContextVar[bool] = ContextVar("verbose", default=True)


def emit(logger: logging.Logger, level: int, text: str, show: Callable[[str], object] | None) -> None:
    """Log a line, and pass it to `show`, if that is given, unless a handler of the caller's shows it.

    >>> emit(logging.getLogger("torchmcl.doctest"), logging.WARNING, "Member 2 took nothing.", print)
    warning: Member 2 took nothing.
    """
    passed: list[logging.LogRecord] = []

    def last(record: logging.LogRecord) -> bool:
        if record.thread in (None, threading.get_ident()):
            passed.append(record)
        return True

    # A filter may have side effects, so none is asked twice: this one, behind the others, sees what they let pass.
    handlers = [] if show is None else list(_console_handlers(logger, level))
    for handler in handlers:
        handler.addFilter(last)
    try:
        logger.log(level, text, stacklevel=2)
    finally:
        for handler in handlers:
            handler.removeFilter(last)
    if show is not None and not passed:
        show(f"warning: {text}" if level == logging.WARNING else text)


def shown_by_logging(logger: logging.Logger, level: int) -> bool:
    """Whether a handler that writes to the console gets records of this logger and level, filters aside."""
    return any(True for _ in _console_handlers(logger, level))


def _console_handlers(logger: logging.Logger, level: int) -> Iterator[logging.Handler]:
    at: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while at is not None:
        yield from (handler for handler in at.handlers if level >= handler.level and _on_console(handler))
        at = at.parent if at.propagate else None


def _on_console(handler: logging.Handler) -> bool:
    # A handler of rich's has a console with a file; while rich shows a bar, it stands in for standard output.
    stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
    console = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return stream is not None and any(stream is _plain(one) for one in console)


def _plain(stream: Any) -> Any:
    return getattr(stream, "rich_proxied_file", stream)


@contextmanager
def verbosity(verbose: bool) -> Iterator[None]:
    """Set VERBOSE while this lasts."""
    before = VERBOSE.set(verbose)
    try:
        yield
    finally:
        VERBOSE.reset(before)


@contextmanager
def muted(*loggers: logging.Logger, when: bool = True) -> Iterator[None]:
    """Drop what another library logs below the level of a warning, while this lasts."""
    before = [logger.level for logger in loggers]
    for logger in loggers if when else ():
        logger.setLevel(max(logger.level, logging.WARNING))
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

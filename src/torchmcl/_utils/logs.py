"""Progress messages, which are always logged with Python's `logging`, and are also printed if `verbose` is True.

Each message appears on the console once. If the program has a logging handler that writes torchmcl's records to the
console, that handler shows the message in its own format; otherwise the message is printed.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torchmcl._utils.console import say_error

# Whether to show progress, for code that has no `verbose` argument, such as a download while data is loaded.
VERBOSE: ContextVar[bool] = ContextVar("verbose", default=True)
# What `report` has printed within `printed_once`.
PRINTED: ContextVar[set[str] | None] = ContextVar("printed", default=None)


def emit(logger: logging.Logger, level: int, text: str, show: Callable[[str], object] | None) -> None:
    """Log a message, and also pass it to `show` if no logging handler has written it to the console.

    >>> emit(logging.getLogger("torchmcl.doctest"), logging.WARNING, "Member 2 took nothing.", print)
    warning: Member 2 took nothing.
    """
    passed: list[logging.LogRecord] = []

    def last(record: logging.LogRecord) -> bool:
        if record.thread in (None, threading.get_ident()):
            passed.append(record)
        return True

    # Filters may have side effects and must not run twice. This filter is added last, so it sees only the records that
    # all other filters pass.
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


def report(logger: logging.Logger, text: str, level: int = logging.INFO) -> None:
    """Log a message, and print it on standard error if VERBOSE is set."""
    printed = PRINTED.get()
    emit(logger, level, text, say_error if VERBOSE.get() and text not in (printed or ()) else None)
    if printed is not None:
        printed.add(text)


def shown_by_logging(logger: logging.Logger, level: int) -> bool:
    """Return whether a console handler receives records from this logger at this level, ignoring filters."""
    return any(True for _ in _console_handlers(logger, level))


def _console_handlers(logger: logging.Logger, level: int) -> Iterator[logging.Handler]:
    current: logging.Logger | None = logger if logger.isEnabledFor(level) else None
    while current is not None:
        yield from (handler for handler in current.handlers if level >= handler.level and _on_console(handler))
        current = current.parent if current.propagate else None


def _on_console(handler: logging.Handler) -> bool:
    # rich's handler has a console with a file. While rich shows a progress bar, rich replaces standard output.
    stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
    console = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return stream is not None and any(stream is getattr(each, "rich_proxied_file", each) for each in console)


@contextmanager
def printed_once() -> Iterator[None]:
    """Let `report` print equal messages only once within a context, such as a command that loads a folder again."""
    before = PRINTED.set(set())
    try:
        yield
    finally:
        PRINTED.reset(before)


@contextmanager
def verbosity(verbose: bool) -> Iterator[None]:
    """Set VERBOSE within a context."""
    before = VERBOSE.set(verbose)
    try:
        yield
    finally:
        VERBOSE.reset(before)


@contextmanager
def muted(*loggers: logging.Logger, level: int = logging.WARNING, when: bool = True) -> Iterator[None]:
    """Raise the level of other libraries' loggers to `level` within a context, if `when` is True."""
    before = [logger.level for logger in loggers]
    for logger in loggers if when else ():
        logger.setLevel(max(logger.level, level))
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)

"""The exceptions of torchmcl.

| class | raised if | also a |
|---|---|---|
| `UsageError` | an argument, option or input is wrong | `ValueError` |
| `DamagedFileError` | a file is damaged, truncated or not of the expected kind | `UsageError` |
| `DivergedError` | a loss is not finite | `ArithmeticError` |
| `LostProcessError` | another process in distributed training was lost | `RuntimeError` |
| `DiskFullError` | the disk or the quota is full | `OSError` |

All of them derive from `TorchmclError`. Any other exception is a bug or comes from the system.
"""

import errno
import os
from collections.abc import Iterable
from difflib import get_close_matches
from reprlib import repr as shown
from typing import Any

MAX_LENGTH = 1000  # characters per message


class TorchmclError(Exception):
    """Base class of all exceptions of torchmcl.

    The message is one line that says what is wrong and what to do. It can quote any input, so it is limited to 1,000
    printable characters.

    >>> str(TorchmclError("Expected text,\\n got \\x1b."))
    'Expected text, got \\\\x1b.'
    """

    def __init__(self, message: object = "") -> None:
        line = " ".join(str(message).split())
        line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in line)
        super().__init__(line if len(line) <= MAX_LENGTH else f"{line[: MAX_LENGTH - 2]} …")


class UsageError(TorchmclError, ValueError):
    """An argument, option or input is wrong.

    >>> raise UsageError("Expected 1 <= k <= 5 members, got k=7.")
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Expected 1 <= k <= 5 members, got k=7.
    """


class DamagedFileError(UsageError):
    """A file is damaged, truncated or not of the expected kind."""


class DivergedError(TorchmclError, ArithmeticError):
    """A loss is not finite: the training diverged and cannot continue."""


class LostProcessError(TorchmclError, RuntimeError):
    """Another process in distributed training ended early."""


class DiskFullError(TorchmclError, OSError):
    """The disk or the quota is full; `errno` and `filename` are set as in any `OSError`.

    >>> error = DiskFullError("Cannot write a.txt.", errno.ENOSPC, "a.txt")
    >>> str(error), error.filename, error.errno == errno.ENOSPC
    ('Cannot write a.txt.', 'a.txt', True)
    """

    def __init__(self, message: object = "", number: int = errno.ENOSPC, filename: str | None = None) -> None:
        super().__init__(message)
        self.errno, self.strerror, self.filename = number, os.strerror(number), filename

    def __str__(self) -> str:  # OSError would print errno and filename instead of the message
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:  # OSError would pickle the message without errno and filename
        return type(self), (self.args[0], self.errno, self.filename), self.__dict__ or None


def damaged(message: object, cause: object) -> UsageError:
    """Create the error for a file that could not be read because of `cause`.

    Returns:
        A plain `UsageError` if the system refused access or memory ran out, because callers remove damaged files and
        this file may be intact. Otherwise, a `DamagedFileError`; zip archives with wrong offsets cause EINVAL, which
        therefore counts as damage.

    >>> damaged("Cannot read a.pt.", ValueError("truncated"))
    DamagedFileError('Cannot read a.pt.')
    >>> damaged("Cannot read a.pt.", PermissionError(errno.EACCES, "Permission denied"))
    UsageError('Cannot read a.pt.')
    """
    by_system = isinstance(cause, OSError) and cause.errno not in (None, errno.EINVAL)
    return UsageError(message) if by_system or isinstance(cause, MemoryError) else DamagedFileError(message)


def known_name(kind: str, name: str, names: Iterable[str], *, register: bool = False) -> None:
    """Raise UsageError if `name` is not one of `names`; `register` adds a hint on how to register a name.

    >>> known_name("fruit", "aple", ["apple", "pear"])
    Traceback (most recent call last):
        ...
    torchmcl.errors.UsageError: Unknown fruit 'aple'. Did you mean 'apple'? Available: apple, pear.
    """
    names = list(names)
    if not isinstance(name, str) or name not in names:
        near = get_close_matches(name[:100].lower(), names, n=1) if isinstance(name, str) else []
        guess = f" Did you mean {near[0]!r}?" if near else ""
        own = " To use your own, import the file that registers it: --import FILE." if register else ""
        raise UsageError(f"Unknown {kind} {shown(name)}.{guess} Available: {', '.join(names)}.{own}")

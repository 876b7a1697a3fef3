"""Python files and modules that register parts of the user's own: imported when a command asks for them, never stored.

Processes that a command starts are given the same names, see `given`.
"""

import os
import shlex
import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from torchmcl.errors import UsageError

_GIVEN: list[str] = []  # absolute paths and dotted names, for processes to come


def load(name: str) -> ModuleType:
    """Import a file by its path or a module by its dotted name; what is imported already does not run again.

    A file is imported under its own name, and its folder is added at the end of `sys.path`: it can import its
    neighbours, and other processes find it when they are sent an object that is defined in it.

    Raises:
        UsageError: if there is no such file or module, if another module has the name, or if importing it fails.
    """
    path = Path(name).resolve() if is_path(name) else None
    module = name if path is None else _module_name(path)
    try:
        found = import_module(module)
    except (Exception, SystemExit) as problem:
        kind, text = type(problem).__name__, str(problem).rstrip(".")
        hint = "Run again with --debug to see the traceback."
        if path is None and isinstance(problem, ModuleNotFoundError) and module.startswith(problem.name or module):
            hint = "Install it, or pass the path of a file, such as ./my_module.py."
        raise UsageError(f"Cannot import {name}: {kind}{_line(problem, path)}: {text}. {hint}") from problem
    if (absolute := name if path is None else str(path)) not in _GIVEN:
        _GIVEN.append(absolute)
    return found


def given() -> tuple[str, ...]:
    """What this command imported, in order: absolute paths of files, and dotted names of modules."""
    return tuple(_GIVEN)


def options(*others: str) -> str:
    """The options of a command line that import the same again, besides the files of `others`.

    >>> options()
    ''
    """
    known = {str(Path(other).resolve()) for other in others}
    again = [os.path.relpath(name) if is_path(name) else name for name in _GIVEN if name not in known]
    return "".join(f" --import {shlex.quote(name)}" for name in again)


def forget() -> None:
    """Begin another command, whose processes import nothing unless it asks for it."""
    _GIVEN.clear()


def is_path(name: str) -> bool:
    """Whether a name is that of a file rather than of a module.

    >>> is_path("my_module.py"), is_path("./my_module"), is_path("my_package.my_module")
    (True, True, False)
    """
    return name.endswith(".py") or "/" in name or os.sep in name


def _module_name(path: Path) -> str:
    """The name that Python imports a file by."""
    name = path.stem
    if not path.is_file():
        raise UsageError(f"Cannot import {path}: no such file. Check the path.")
    if path.suffix != ".py" or "." in name:
        raise UsageError(f"Cannot import {path}: its name is not that of a module, such as my_module.py. Rename it.")
    if Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve() == path:
        return "__main__"  # this program itself
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    invalidate_caches()
    try:
        origin = getattr(find_spec(name), "origin", None)
    except ValueError:  # a module that was made without a file
        origin = None
    if origin is None or Path(origin).resolve() != path:
        other = f" ({origin})" if origin else ""
        raise UsageError(f"Cannot import {path}: another module{other} has the same name. Rename the file.")
    return name


def _line(problem: BaseException, path: Path | None) -> str:
    """Where in the file it happened."""
    lines = [frame.lineno for frame in extract_tb(problem.__traceback__) if path and Path(frame.filename) == path]
    return f" in line {lines[-1]}" if lines else ""

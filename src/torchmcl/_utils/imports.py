"""User files and modules that register methods, networks and other parts.

The option --import imports these files. Their names are passed to processes that a command starts, but never stored.
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

_LOADED: list[str] = []  # absolute paths and dotted names


def load(name: str) -> ModuleType:
    """Import a file by its path or a module by its dotted name, once per process.

    A file is imported under its own name, and its folder is appended to `sys.path`, so that the file can import
    other files there and other processes can unpickle objects that it defines. Raises UsageError if the import fails.
    """
    path = Path(name).resolve() if is_path(name) else None
    module = name if path is None else _module_name(path)
    try:
        imported = import_module(module)
    except (Exception, SystemExit) as problem:
        kind, text = type(problem).__name__, str(problem).rstrip(".")
        hint = "Run again with --debug to see the traceback."
        if path is None and isinstance(problem, ModuleNotFoundError) and module.startswith(problem.name or module):
            hint = "Install the module, or pass the path of a file, such as ./my_module.py."
        raise UsageError(f"Cannot import {name}: {kind}{_line(problem, path)}: {text}. {hint}") from problem
    if (absolute := name if path is None else str(path)) not in _LOADED:
        _LOADED.append(absolute)
    return imported


def loaded() -> tuple[str, ...]:
    """Return the files (absolute paths) and modules (dotted names) that this command has imported, in order."""
    return tuple(_LOADED)


def options(*others: str) -> str:
    """Return the command-line options that repeat the imports, except those of the files in `others`."""
    known = {str(Path(other).resolve()) for other in others}
    names = [os.path.relpath(name) if is_path(name) else name for name in _LOADED if name not in known]
    return "".join(f" --import {shlex.quote(name)}" for name in names)


def reset() -> None:
    """Clear the list of imports of the previous command."""
    _LOADED.clear()


def is_path(name: str) -> bool:
    """Return whether a name refers to a file rather than to a module.

    >>> is_path("my_module.py"), is_path("./my_module"), is_path("my_package.my_module")
    (True, True, False)
    """
    return name.endswith(".py") or "/" in name or os.sep in name


def _module_name(path: Path) -> str:
    """Check a file and return the name under which Python imports it."""
    name = path.stem
    if not path.is_file():
        raise UsageError(f"Cannot import {path}: no such file. Check the path.")
    if path.suffix != ".py" or "." in name:
        raise UsageError(f"Cannot import {path}: its name is not a valid module name, such as my_module.py. Rename it.")
    if Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve() == path:
        return "__main__"  # the running program
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    invalidate_caches()
    try:
        origin = getattr(find_spec(name), "origin", None)
    except ValueError:  # a module that was created without a file
        origin = None
    if origin is None or Path(origin).resolve() != path:
        other = f" ({origin})" if origin else ""
        raise UsageError(f"Cannot import {path}: another module{other} has the same name. Rename the file.")
    return name


def _line(problem: BaseException, path: Path | None) -> str:
    """Return the phrase " on line N", where N is the line of the file that raised the error, or an empty string."""
    lines = [frame.lineno for frame in extract_tb(problem.__traceback__) if path and Path(frame.filename) == path]
    return f" on line {lines[-1]}" if lines else ""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from torchmcl.errors import DamagedFileError, damaged

_RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dictionary of lists, numbers, strings and uint8 arrays, without executing code from the file.

    Any other object in the file raises an error. The content of an array is checked later, by `Array.bytes_`.
    """
    try:
        content = _Reader(io.BytesIO(path.read_bytes()), encoding="latin-1").load()
    except DamagedFileError as error:
        raise DamagedFileError(f"The pickle {path} is not safe: {error} Download the file again.") from error
    except Exception as error:  # the unpickler raises many kinds of exceptions for damaged bytes
        raise damaged(f"The pickle {path} is damaged ({type(error).__name__}). Download it again.", error) from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"Expected a dict in {path}, got {type(content).__name__}. Download the file again.")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class Array:
    """An array or its data type as described in a pickle, before any checks."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_(self, path: Path) -> NDArray[np.uint8]:
        """Return the array; raise DamagedFileError unless it is uint8 and has as many bytes as its shape requires."""
        try:
            _, shape, kind, by_column, raw = self.state
            if not all(type(size) is int for size in shape):  # checked before sizes are compared
                raise TypeError("the shape contains a size that is not an integer")
            # Python 2 stored the bytes as str.
            bytes_ = raw.encode("latin-1") if isinstance(raw, str) else bytes(memoryview(raw))
            if kind.arguments[0] != "u1" or min(shape) < 0:
                raise ValueError("the array is not uint8, or its shape has a negative size")
            return np.frombuffer(bytes_, dtype=np.uint8).reshape(shape, order="F" if by_column else "C")
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise DamagedFileError(f"Expected a uint8 array in {path}. Download the file again.") from error


# The memory use of the pure-Python unpickler depends on the size of the file, not on the sizes that the file declares.
class _Reader(pickle._Unpickler):
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECONSTRUCT or (module, name) == ("numpy", "dtype"):
            return _fresh(Array)
        if (module, name) == ("numpy", "ndarray"):
            return None  # passed to _reconstruct, but never called
        if (module, name) == ("_codecs", "encode"):
            return _fresh(_latin)
        raise DamagedFileError(f"it calls {f'{module}.{name}'!r}.")

    # Sets, and keys other than strings, bytes and integers, are rejected because sets and dictionaries hash their
    # elements, and hashing a tuple of 60 nested pairs takes 2 ** 60 steps.
    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if bytes([code]) not in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)
    }

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append({})
        self._fill(items)

    def load_setitem(self) -> None:
        self._fill([self.stack.pop(-2), self.stack.pop()])

    def load_setitems(self) -> None:
        self._fill(self.pop_mark())

    def _fill(self, items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes | int):
                raise TypeError(f"unexpected key of type {type(key).__name__}")
            self.stack[-1][key] = value

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that a pickle that sets attributes on it cannot change the original."""
    return lambda *arguments: function(*arguments)


def _latin(text: str, _: str = "") -> bytes:
    """Restore the bytes that Python 3 stores as text in old pickle protocols."""
    return text.encode("latin-1")

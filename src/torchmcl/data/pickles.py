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
    """A pickled dictionary of lists, numbers, texts and arrays of bytes; anything else in it is refused.

    What a pickle names is normally imported and called. Here nothing is: what stands for an array is noted down as an
    `Array`, and its bytes are taken out later.
    """
    try:
        content = _Reader(io.BytesIO(path.read_bytes()), encoding="latin-1").load()
    except DamagedFileError as error:
        raise DamagedFileError(f"{error} It comes from {path}, which is not trusted. Get it again.") from error
    except Exception as error:  # damaged bytes make the unpickler raise anything
        raise damaged(f"Expected a whole pickle, got {path}: {type(error).__name__}. Get it again.", error) from error
    if not isinstance(content, dict):
        raise DamagedFileError(f"Expected a dictionary in {path}, got {type(content).__name__}. Get it again.")
    return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


class Array:
    """What a pickle says of an array or of its type, not yet believed."""

    def __init__(self, *about: Any) -> None:
        self.about = about
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def bytes_(self, path: Path) -> NDArray[np.uint8]:
        """The array, if it is one of bytes and has as many as its shape says."""
        try:
            _, shape, kind, by_column, raw = self.state
            if not all(type(size) is int for size in shape):  # before any two are compared
                raise TypeError("not a shape")
            bytes_ = raw.encode("latin-1") if isinstance(raw, str) else bytes(memoryview(raw))  # str: by Python 2
            if kind.about[0] != "u1" or min(shape) < 0:
                raise ValueError("not bytes, or -1 for whatever fits")
            return np.frombuffer(bytes_, dtype=np.uint8).reshape(shape, order="F" if by_column else "C")
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise DamagedFileError(f"Expected an array of bytes in {path}, got another. Get it again.") from error


# The one written in Python: its memory grows with the file, not with what the file claims.
class _Reader(pickle._Unpickler):
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECONSTRUCT or (module, name) == ("numpy", "dtype"):
            return _fresh(Array)
        if (module, name) == ("numpy", "ndarray"):
            return None  # an argument of the former, never called
        if (module, name) == ("_codecs", "encode"):
            return _fresh(_latin)
        raise DamagedFileError(f"Expected a pickle of arrays of bytes, it asks for {f'{module}.{name}'!r}.")

    # A dictionary's keys are hashed, and a tuple of 60 levels, each twice the one below, takes 2 ** 60 steps.
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
                raise TypeError(f"a key of type {type(key).__name__}")
            self.stack[-1][key] = value

    dispatch[pickle.DICT[0]] = load_dict
    dispatch[pickle.SETITEM[0]] = load_setitem
    dispatch[pickle.SETITEMS[0]] = load_setitems


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the file may write to without a mark on ours."""
    return lambda *about: function(*about)


def _latin(text: str, _: str = "") -> bytes:
    """How Python 3 writes bytes into old protocols."""
    return text.encode("latin-1")

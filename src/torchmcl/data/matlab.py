import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from struct import unpack_from
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl.data.find import check_file
from torchmcl.errors import DamagedFileError

_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC = range(6, 16)  # the array classes from double to uint64
_COMPLEX = 0x0800


def read_matlab(path: Path, *, max_bytes: int) -> dict[str, NDArray[Any]]:
    """Read the numeric arrays of a level 5 MATLAB file (-v6 or -v7).

    `max_bytes` limits the size before and after decompression. SciPy's reader is not used: damaged files can crash it.
    """
    # For the layout, see "MAT-File Format" by MathWorks. Each element has a tag (type, size) and padded content.
    content = memoryview(check_file(path, max_bytes).read_bytes())
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[126:128]))
    if order is None or content[125 if order == "<" else 124] != 1:
        raise DamagedFileError(f"The file {path} is not a level 5 MATLAB file. Save it with -v7.")
    try:
        matrices = (_matrix(body, order) for body in _bodies(content[128:], order, max_bytes))
        return {name: array for name, array in matrices if array is not None}
    except (ValueError, zlib.error) as error:
        raise DamagedFileError(f"The MATLAB file {path} is damaged: {error}. Download it again.") from error


def _bodies(content: memoryview, order: str, max_bytes: int) -> Iterator[memoryview]:
    """Yield the unpacked content of each matrix; `max_bytes` limits the total unpacked size."""
    left = max_bytes
    for kind, body in _elements(content, order):
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(body, max(left, 1))
            left -= len(unpacked)
            if not unpacker.eof or left < 0:
                raise ValueError(f"an array is truncated or has more than {max_bytes} bytes")
            (kind, body), *_ = _elements(memoryview(unpacked), order)
        if kind == _MATRIX:
            yield body


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Iterate over the type and content of each element; content of up to 4 bytes is stored in the tag."""
    at = 0
    while at < len(content):
        if len(content) - at < 8:
            raise ValueError("a tag is truncated")
        kind, size = unpack_from(f"{order}II", content, at)
        small = kind >> 16
        if small:
            kind, size = kind & 0xFFFF, small
        start = at + (4 if small else 8)
        if size > (4 if small else len(content) - start):
            raise ValueError("an element is truncated")
        yield kind, content[start : start + size]
        at = start + size
        if kind != _COMPRESSED:
            at += -at % 8


def _matrix(body: memoryview, order: str) -> tuple[str, NDArray[Any] | None]:
    """Read the name and values of an array; the values are None if they are not real numbers."""
    elements = _elements(body, order)
    head = [content for _, content in (next(elements, (0, memoryview(b""))) for _ in range(3))]
    if len(head[0]) != 8 or len(head[1]) % 4 or not head[1]:
        raise ValueError("an array has no flags or shape")
    (flags,) = unpack_from(f"{order}I", head[0])
    shape = unpack_from(f"{order}{len(head[1]) // 4}i", head[1])
    name = bytes(head[2]).decode("latin-1")
    if flags & 0xFF not in _NUMERIC or flags & _COMPLEX:
        return name, None
    kind, content = next(elements, (0, memoryview(b"")))
    if kind not in _TYPES:
        raise ValueError("an array has an unknown type")
    dtype = np.dtype(_TYPES[kind]).newbyteorder("<" if order == "<" else ">")
    if len(shape) > 8 or min(shape) < 0 or prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"the size of {name!r} does not match its shape {shape}")
    array = np.frombuffer(content, dtype=dtype).reshape(shape, order="F")
    return name, array.astype(dtype.newbyteorder("="), copy=False)

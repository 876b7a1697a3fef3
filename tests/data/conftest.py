import struct
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def empty_cache(tmp_path_factory, monkeypatch) -> Path:
    """The user's cache, empty, so that nothing in it decides a test."""
    folder = tmp_path_factory.mktemp("cache")
    for module in ("find", "download"):
        monkeypatch.setattr(f"torchmcl.data.{module}.cache", lambda: folder)
    return folder


@pytest.fixture
def no_network(monkeypatch) -> None:
    """No files anywhere and nobody to ask for them."""

    def refuse(*_, **__):
        raise ConnectionError("Name or service not known\n(line 2)")

    monkeypatch.setattr("pooch.retrieve", refuse)
    monkeypatch.delenv("TORCHMCL_DATA", raising=False)


@pytest.fixture(scope="session")
def python_2():
    """What Python 2 and its numpy write at protocol 2: byte strings for texts and for an array's bytes."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def value(of) -> bytes:
        if isinstance(of, np.ndarray):
            start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
            kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
            kind += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            shape = b"".join(b"J" + struct.pack("<i", n) for n in of.shape) + b"\x86"
            return start + b"(K\x01" + shape + kind + b"\x89" + text(of.tobytes()) + b"tb"
        if isinstance(of, list):
            return b"](" + b"".join(map(value, of)) + b"e"
        return b"J" + struct.pack("<i", of) if isinstance(of, int) else text(of.encode("latin-1"))

    def dump(content: dict) -> bytes:
        items = b"".join(text(key.encode()) + value(each) for key, each in content.items())
        return b"\x80\x02}(" + items + b"u."

    return dump

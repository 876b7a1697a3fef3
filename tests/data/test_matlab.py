import struct
import zlib

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st

from torchmcl.data.matlab import read_matlab
from torchmcl.errors import UsageError

KINDS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


@pytest.mark.parametrize("compressed", [False, True])
@given(
    kind=st.sampled_from(KINDS), shape=st.lists(st.integers(0, 4), min_size=2, max_size=4), name=st.sampled_from("ab")
)
def test_against_scipy(tmp_path_factory, compressed, kind, shape, name) -> None:
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    array = np.random.default_rng(0).integers(0, 100, shape).astype(kind)
    scipy.io.savemat(path, {name * 7: array, "z": np.eye(2)}, do_compression=compressed)
    expected = scipy.io.loadmat(path)
    found = read_matlab(path, max_bytes=10**6)
    assert found.keys() == {name * 7, "z"}
    for key, values in found.items():
        assert values.dtype == expected[key].dtype
        assert np.array_equal(values, expected[key])


def test_what_is_not_of_numbers_is_left_out(tmp_path) -> None:
    path = tmp_path / "a.mat"
    content = {"x": np.arange(3), "text": "hello", "complex": np.array([1j]), "struct": {"a": 1}}
    scipy.io.savemat(path, content | {"cells": np.array([1, "a"], object), "logical": np.array([True])})
    assert read_matlab(path, max_bytes=10**6).keys() == {"x", "logical"}


def test_the_other_byte_order(tmp_path) -> None:
    def element(kind: int, body: bytes) -> bytes:
        return struct.pack(">II", kind, len(body)) + body + bytes(-len(body) % 8)

    body = element(6, struct.pack(">II", 11, 0)) + element(5, struct.pack(">ii", 1, 3))
    body += struct.pack(">HHcxxx", 1, 1, b"x") + element(4, struct.pack(">3H", 1, 2, 300))
    path = tmp_path / "a.mat"
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI" + element(14, body))
    found = read_matlab(path, max_bytes=10**6)["x"]
    assert found.tolist() == [[1, 2, 300]]
    assert found.tolist() == scipy.io.loadmat(path)["x"].tolist()
    assert found.dtype.isnative


def test_a_bomb(tmp_path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"x": np.zeros((1000, 3000), np.uint8)}, do_compression=True)
    with pytest.raises(UsageError, match="more than 100000 bytes"):
        read_matlab(path, max_bytes=10**5)


@given(at=st.integers(0, 10**6), value=st.integers(0, 255), compressed=st.booleans(), cut=st.booleans())
def test_damage_never_gets_through_as_another_error(tmp_path_factory, at, value, compressed, cut) -> None:
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    scipy.io.savemat(path, {"X": np.arange(12, dtype=np.uint8), "y": np.arange(3.0)}, do_compression=compressed)
    whole = bytearray(path.read_bytes())
    at %= len(whole)
    path.write_bytes(whole[:at] if cut else whole[:at] + bytes([value]) + whole[at + 1 :])
    try:
        said = f"{path} holds {sorted(read_matlab(path, max_bytes=10**6))}"
    except UsageError as error:
        said = str(error)
    assert str(path) in said
    assert "\n" not in said


def test_a_compressed_part_with_nothing_in_it(tmp_path) -> None:
    path = tmp_path / "a.mat"
    packed = zlib.compress(b"")
    path.write_bytes(bytes(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(UsageError, match="damaged"):
        read_matlab(path, max_bytes=10**6)

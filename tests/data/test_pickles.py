import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from torchmcl.data.pickles import read_pickle
from torchmcl.errors import UsageError


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def refused(path: Path, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        read_pickle(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_and_lists(tmp_path, protocol, order) -> None:
    array = np.arange(250, 256, dtype=np.uint8).reshape(2, 3, order=order)
    content = {b"data": array, "labels": [1, 2], b"batch_label": b"one"}
    found = read_pickle(put(tmp_path / "a", pickle.dumps(content, protocol)))
    assert np.array_equal(found["data"].bytes_(tmp_path), array)
    assert found["labels"] == [1, 2]


def test_as_python_2_wrote_it(tmp_path, python_2) -> None:
    array = np.arange(200, 206, dtype=np.uint8).reshape(2, 3)
    found = read_pickle(put(tmp_path / "a", python_2({"data": array, "labels": [7, 8]})))
    assert np.array_equal(found["data"].bytes_(tmp_path), array)
    assert found["labels"] == [7, 8]


class Harm:
    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_nothing_is_executed(tmp_path) -> None:
    mark = tmp_path / "mark"
    for harm in (
        Harm(exec, f"open({str(mark)!r}, 'w').close()"),
        Harm(eval, f"open({str(mark)!r}, 'w').close()"),
        Harm(open, str(mark), "w"),
        Harm(Path.touch, mark),
        Harm(__import__, "os"),
        Harm(np.save, str(mark), 1),
        Harm(np.ndarray, (10**15,)),
        Harm(bytearray, 10**15),
    ):
        for protocol in (0, 2, 4):
            content = {"data": harm, "labels": [1]}
            refused(put(tmp_path / "a", pickle.dumps(content, protocol)), "The pickle .* is (damaged|not safe)")
    assert not mark.exists()
    assert not mark.with_suffix(".npy").exists()


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"cnumpy\nf2py\n.",
        b"c_codecs\nlookup\n.",
        b"cbuiltins\ngetattr\n.",
    ],
)
def test_other_names_are_refused(tmp_path, code) -> None:
    refused(put(tmp_path / "a", code), r"The pickle .* is not safe: it calls '\w+\.\w+'")


def test_nothing_of_ours_is_written_to(tmp_path) -> None:
    """State for what stands for a function: a dictionary for its attributes, another for its slots."""
    code = b"cnumpy\ndtype\n}(S'a'\nI1\nu}(S'__defaults__'\nI1\n85tb."
    before = dict(vars(read_pickle))
    refused(put(tmp_path / "a", code), "The pickle .* is damaged")
    assert vars(read_pickle) == before


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b"\x80",
        b"}",
        b"not a pickle",
        pickle.dumps({"data": [1, 2, 3]})[:-5],
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",  # claims 4 EiB of bytes
        b"}r" + struct.pack("<I", 2**32 - 1) + b"j" + struct.pack("<I", 5) + b".",  # a memo of 4 billion
        b"\x8b" + struct.pack("<i", 2**31 - 1) + b".",
    ],
)
def test_damaged_and_lying(tmp_path, code) -> None:
    refused(put(tmp_path / "a", code), "The pickle .* is damaged")


def test_not_a_dictionary(tmp_path) -> None:
    refused(put(tmp_path / "a", pickle.dumps([1])), "Expected a dict in .*, got list")


@pytest.mark.parametrize("array", [np.zeros(3, np.float32), np.zeros(3, object), np.zeros(3, "i1"), np.uint8(3)])
def test_an_array_of_other_things(tmp_path, array) -> None:
    path = put(tmp_path / "a", pickle.dumps({"data": array}, 2))
    with pytest.raises(UsageError, match=r"Expected a uint8 array in|is not safe: it calls"):
        read_pickle(path)["data"].bytes_(path)


def test_an_array_that_lies_about_its_shape(tmp_path) -> None:
    content = pickle.dumps({"data": np.zeros((7, 9), np.uint8)}, 2)
    assert content.count(b"K\x07K\x09") == 1
    for lie in (b"K\x07K\x08", b"K\xffK\xff"):
        path = put(tmp_path / "a", content.replace(b"K\x07K\x09", lie))
        with pytest.raises(UsageError, match="Expected a uint8 array in"):
            read_pickle(path)["data"].bytes_(path)

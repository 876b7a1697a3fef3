import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from torchmcl import data
from torchmcl.data.datasets import npz
from torchmcl.errors import UsageError

X = np.random.default_rng(0).integers(0, 256, (20, 8, 9, 3), dtype=np.uint8)
Y = np.arange(20) % 4


def saved(folder: Path, *, compressed: bool = False, **arrays) -> Path:
    (np.savez_compressed if compressed else np.savez)(folder / "set.npz", **arrays)
    return folder / "set.npz"


def refused(path: Path, match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        data.load(f"npz:{path}")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compressed", [False, True])
def test_images_and_a_test_set(tmp_path, compressed) -> None:
    path = saved(tmp_path, compressed=compressed, x=X, y=Y, x_test=X[:5], y_test=Y[:5], other=np.zeros(3))
    made = data.load(f"npz:{path}")
    assert np.array_equal(made.train.images.numpy(), X.transpose(0, 3, 1, 2))
    assert made.train.target.tolist() == Y.tolist()
    assert made.test.target.tolist() == Y[:5].tolist()
    assert made.preprocess == "gcn"
    assert list(data.load(f"npz:{path}", parts=("test",)).parts) == ["test"]


def test_a_split_of_its_own(tmp_path) -> None:
    made = data.load(f"npz:{saved(tmp_path, x=X, y=Y)}", seed=4)
    assert made.test.target.bincount().tolist() == [1] * 4
    assert made.choices["split_seed"] == 4


def test_a_table_with_names(tmp_path) -> None:
    names = np.array(["ash", "birch", "cedar", "oak"])[Y]
    made = data.load(f"npz:{saved(tmp_path, x=X.reshape(20, -1) / 255, y=names)}", classes="oak,ash")
    assert made.classes == ("oak", "ash")
    assert made.preprocess == "none"
    assert made.train.images.shape == (8, 216)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": X}, "Expected x and y, and optionally both x_test and y_test, in .*, got \\['x'\\]"),
        (
            {"x": X, "y": Y, "x_test": X},
            "x and y, and optionally both x_test and y_test, in .*, got \\['x', 'x_test', 'y'\\]",
        ),
        ({"x": X, "y": Y[:19]}, "Expected x and y to be non-empty and of the same length"),
        ({"x": np.full((20, 2), np.nan), "y": Y}, "Expected finite numbers in x"),
        ({"x": X, "y": np.array([None] * 20)}, "Expected numbers or strings in y of .*, got unsafe Python objects"),
        ({"x": X, "y": Y, "x_test": X[:, :4], "y_test": Y}, "Expected x and x_test to have the same shape"),
        ({"x": X[:2], "y": Y[:2]}, "Cannot hold out any of 2 examples: each has a different label"),
        ({"x": X[:1], "y": np.array([0.5])}, "Cannot hold out any of 1 examples: at least two are needed"),
    ],
)
def test_what_is_no_set(tmp_path, arrays, match) -> None:
    refused(saved(tmp_path, **arrays), match)


def test_damaged(tmp_path) -> None:
    refused(tmp_path / "none.npz", "The file .*none.npz does not exist")
    path = saved(tmp_path, x=X, y=Y)
    whole = path.read_bytes()
    path.write_bytes(b"")
    refused(path, r"Expected 1 to \d+ bytes in")
    for content in (whole[:-30], b"hello", b"\x80\x04}.", whole.replace(X.tobytes()[:50], bytes(50))):
        path.write_bytes(content)
        refused(path, "Cannot read .* Write it with numpy.savez")


def test_a_malicious_file_leaves_no_mark(tmp_path) -> None:
    class Harm:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'mark')!r}, 'w').close()",)

    refused(saved(tmp_path, x=np.array([Harm()] * 2, dtype=object), y=Y[:2]), "got unsafe Python objects")
    assert not (tmp_path / "mark").exists()


def header(shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_an_array_that_claims_too_much(tmp_path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header((10**12, 8, 8)) + bytes(100))
        archive.writestr("y.npy", header((2,)) + bytes(2))
    refused(path, r"The size of x in .* does not match its shape \(1000000000000, 8, 8\)")


def test_a_bomb(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(npz, "MAX_BYTES", 10**6)
    path = saved(tmp_path, compressed=True, x=np.zeros((2000, 32, 32), np.uint8), y=np.zeros(2000, int))
    assert path.stat().st_size < 10**5
    refused(path, "Expected at most 1000000 bytes of arrays in .*, got ")

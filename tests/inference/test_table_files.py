"""Examples from tables on a command line."""

import numpy as np
import pytest

from torchmcl import UsageError
from torchmcl.inference.table_files import examples


def test_tables_of_several_files(tmp_path):
    (tmp_path / "a.csv").write_text("width,height\n1,2\n3,4.5\n\n")
    (tmp_path / "b.CSV").write_bytes("\ufeff-1e3, 7\r\n".encode())
    np.savez(tmp_path / "c.npz", x=np.array([[8, 9]]), y=np.array([1.5]))
    files = [tmp_path / name for name in ("a.csv", "b.CSV", "c.npz")]
    x, rows = examples(files)
    assert x.tolist() == [[1, 2], [3, 4.5], [-1000, 7], [8, 9]]
    assert [(row["file"], row["row"]) for row in rows] == [
        (str(files[0]), 1),
        (str(files[0]), 2),
        (str(files[1]), 1),
        (str(files[2]), 1),
    ]


def test_images_are_left_to_the_reader_of_images():
    assert examples(["a.png", "b.jpg"]) == (["a.png", "b.jpg"], [{"image": "a.png"}, {"image": "b.jpg"}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3\n", "Expected 2 columns in line 3 of .*, got 1"),
        ("1,2\n3,x\n", "Expected numbers in line 2 of .*, got 'x'"),
        ("a,b\n", "at least one row of numbers"),
        ("", "Expected 1 to .* bytes"),
        (",\n", "at least one row of numbers"),
        (b"\xff\xfe1,2\n", "as CSV"),
        ("a,b\n1,2\n3,nan\n", "Expected finite numbers in .*table.csv, got NaN or infinity in row 2"),
    ],
)
def test_csv_files_that_cannot_be(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=message) as caught:
        examples([path])
    assert "\n" not in str(caught.value)


def test_other_files_that_cannot_be(tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nothing")
    np.savez(tmp_path / "named.npz", inputs=np.zeros((2, 2)))
    np.savez(tmp_path / "flat.npz", x=np.zeros(3))
    np.savez(tmp_path / "infinite.npz", x=np.array([[0.0], [np.inf]]))
    np.savez(tmp_path / "wide.npz", x=np.zeros((1, 3)))
    np.savez(tmp_path / "words.npz", x=np.array([["a"]]))
    np.savez(tmp_path / "objects.npz", x=np.array([[{}]], dtype=object))
    (tmp_path / "two.csv").write_text("1,2\n")
    for names, message in (
        (["missing.csv"], "missing.csv"),
        (["broken.npz"], "Cannot read"),
        (["named.npz"], "Expected an array x in"),
        (["infinite.npz"], "NaN or infinity in row 2"),
        (["flat.npz"], r"Expected numbers \(N, D\)"),
        (["words.npz"], r"Expected numbers \(N, D\)"),
        (["objects.npz"], "unsafe Python objects"),
        (["wide.npz", "two.csv"], "tables with the same columns"),
        (["two.csv", "a.png"], "images and tables at the same time"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            examples([tmp_path / name for name in names])
        assert "\n" not in str(caught.value)

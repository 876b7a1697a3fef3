"""Image files of every kind, whole, damaged, mislabelled and lying: read right, or refused in one line."""

import io

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from outcomes import cases, ends_well
from torchmcl.data import read_image
from torchmcl.data.image_files import image_size

pytestmark = pytest.mark.slow

# Kind of file -> the modes that Pillow writes into it, and those that come back byte for byte.
KINDS = {
    "PNG": ["L", "RGB", "RGBA", "P", "1", "I;16", "LA"],
    "JPEG": ["L", "RGB", "CMYK"],
    "TIFF": ["L", "RGB", "CMYK", "I;16", "1", "RGBA", "F", "I"],
    "GIF": ["L", "RGB", "P"],
    "BMP": ["L", "RGB", "1"],
    "WEBP": ["RGB", "RGBA"],
    "PPM": ["L", "RGB", "I;16"],
}
EXTENSIONS = ["png", "jpg", "gif", "tif", "bmp", "webp", "txt", "", "PNG", "exe"]
TURNS = {1: 0, 3: 2, 6: 3, 8: 1}  # EXIF orientation -> quarter turns to the left


@st.composite
def images(draw):
    kind = draw(st.sampled_from(list(KINDS)))
    mode = draw(st.sampled_from(KINDS[kind]))
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 3)))
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (height, width), dtype=np.uint16))
    elif mode in ("F", "I"):
        image = Image.fromarray(rng.integers(0, 255, (height, width)).astype(np.float32 if mode == "F" else np.int32))
    else:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode)
    options, turn, frames = {}, 0, 1
    if kind in ("PNG", "JPEG", "WEBP") and draw(st.booleans()):
        orientation = draw(st.sampled_from([*TURNS, 0, 9, 65535]))
        exif = Image.Exif()
        exif[0x0112] = orientation
        options, turn = {"exif": exif}, TURNS.get(orientation, 0)
    if kind in ("GIF", "WEBP", "TIFF", "PNG") and mode in ("L", "RGB") and draw(st.booleans()):
        frames = 3
        more = [Image.new(mode, image.size, shade) for shade in ((20, 90) if mode == "L" else ((9, 0, 0), (0, 9, 0)))]
        options |= {"save_all": True, "append_images": more}
    if kind == "WEBP":
        options["lossless"] = True
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return kind, mode, image, turn, frames, buffer.getvalue()


@cases(300)
@given(images(), st.sampled_from(EXTENSIONS), st.sampled_from([1, 3]), st.sampled_from([None, (5, 7)]))
def test_whole(tmp_path_factory, made, extension, channels, size):
    """What is upright, of which mode and which of several pictures; the extension means nothing."""
    kind, mode, image, turn, _, content = made
    path = tmp_path_factory.mktemp("images") / f"a.{extension}"
    path.write_bytes(content)
    found = ends_well(lambda: read_image(path, size, channels))
    if mode in ("F", "I"):
        assert found is None  # of a range unknown
        return
    height, width = (image.height, image.width) if turn % 2 == 0 else (image.width, image.height)
    assert image_size(path) == (height, width)
    assert found.shape == (channels, *(size or (height, width)))
    if size is None and kind in ("PNG", "BMP", "PPM", "TIFF", "WEBP") and mode in ("L", "RGB", "1", "I;16"):
        expected = np.asarray(image)
        expected = np.rint(expected / 257).astype(np.uint8) if mode == "I;16" else np.asarray(image.convert("RGB"))
        expected = np.rot90(expected, turn)
        if mode == "I;16":
            assert np.array_equal(found[0], expected)
        elif channels == 3:
            assert np.array_equal(found, expected.transpose(2, 0, 1))


@cases(300)
@given(images(), st.data())
@example(("", "", None, 0, 1, b""), None)
def test_damaged(tmp_path_factory, made, data):
    """Cut, filled and flipped bytes: an array of the right form, or one line."""
    content = bytearray(made[-1])
    if data is not None and content:
        what = data.draw(st.sampled_from(["cut", "flip", "zero", "grow"]))
        at = data.draw(st.integers(0, len(content) - 1))
        if what == "cut":
            del content[at:]
        elif what == "flip":
            content[at] = data.draw(st.integers(0, 255))
        elif what == "zero":
            content[at : at + 8] = bytes(len(content[at : at + 8]))
        else:
            content[at:at] = data.draw(st.binary(max_size=20))
    path = tmp_path_factory.mktemp("images") / "a.png"
    path.write_bytes(content)
    found = ends_well(lambda: read_image(path, (6, 6)))
    if found is not None:
        assert found.shape == (3, 6, 6)
    ends_well(lambda: image_size(path))


@cases(60)
@given(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"II*\x00", b"BM", b"P6\n", b"RIFF"]),
)
def test_noise(tmp_path_factory, noise, head):
    path = tmp_path_factory.mktemp("images") / "a.png"
    path.write_bytes(head + noise)
    found = ends_well(lambda: read_image(path, (6, 6)))
    if found is not None:
        assert found.shape == (3, 6, 6)

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchmcl.data import ImageFiles, read_image
from torchmcl.data.image_files import convert_images, image_size
from torchmcl.errors import UsageError

H, W = 6, 9


def picture(seed: int = 0, *, shape=(H, W, 3), high: int = 256, kind=np.uint8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape, dtype=kind)


def saved(image: Image.Image, path: Path, **options) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("extension", ["png", "bmp", "ppm", "tif", "webp"])
def test_colour(tmp_path, extension) -> None:
    pixels = picture()
    options = {"lossless": True} if extension == "webp" else {}
    path = saved(Image.fromarray(pixels), tmp_path / f"a.{extension}", **options)
    assert np.array_equal(read_image(path), pixels.transpose(2, 0, 1))
    assert image_size(path) == (H, W)


def test_jpeg_against_pillow(tmp_path) -> None:
    path = saved(Image.fromarray(picture()), tmp_path / "a.jpg")
    assert np.array_equal(read_image(path), np.asarray(Image.open(path)).transpose(2, 0, 1))


def test_grey_among_colour(tmp_path) -> None:
    pixels = picture(shape=(H, W))
    path = saved(Image.fromarray(pixels), tmp_path / "a.png")
    assert np.array_equal(read_image(path), np.stack([pixels] * 3))
    assert np.array_equal(read_image(path, channels=1), pixels[None])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "1", "CMYK", "YCbCr"])
def test_other_modes(tmp_path, mode) -> None:
    image = Image.fromarray(picture()).convert(mode)
    extension = {"CMYK": "jpg", "YCbCr": "jpg"}.get(mode, "png")
    path = saved(image, tmp_path / f"a.{extension}")
    found = read_image(path)
    assert found.shape == (3, H, W)
    assert np.array_equal(found, np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1))
    assert read_image(path, channels=1).shape == (1, H, W)


def test_a_palette_with_transparency(tmp_path) -> None:
    image = Image.fromarray(picture()).quantize(8)
    path = saved(image, tmp_path / "a.png", transparency=b"\x00\x80\xff")
    assert np.array_equal(read_image(path), np.asarray(image.convert("RGB")).transpose(2, 0, 1))


@pytest.mark.parametrize("extension", ["png", "tif", "pgm"])
def test_sixteen_bits_are_scaled(tmp_path, extension) -> None:
    pixels = picture(shape=(H, W), high=65536, kind=np.uint16)
    pixels[0, :3] = 0, 256, 65535
    path = tmp_path / f"a.{extension}"
    if extension == "pgm":  # which Pillow reads, and before version 11 does not write
        path.write_bytes(b"P5\n%d %d\n65535\n" % (W, H) + pixels.astype(">u2").tobytes())
    else:
        saved(Image.fromarray(pixels), path)
    expected = np.rint(pixels / 257).astype(np.uint8)
    assert np.array_equal(read_image(path, channels=1), expected[None])
    assert np.array_equal(read_image(path), np.stack([expected] * 3))


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_a_range_unknown_is_refused(tmp_path, kind) -> None:
    path = saved(Image.fromarray(picture(shape=(H, W), kind=np.int32).astype(kind)), tmp_path / "a.tif")
    with pytest.raises(UsageError, match=r"The image .*a.tif has 32 bits per channel"):
        read_image(path)


@pytest.mark.parametrize(("orientation", "turn"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_turned_by_its_metadata(tmp_path, orientation, turn) -> None:
    pixels = picture()
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(Image.fromarray(pixels), tmp_path / "a.png", exif=exif)
    expected = np.rot90(pixels, turn)
    assert np.array_equal(read_image(path), expected.transpose(2, 0, 1))
    assert image_size(path) == expected.shape[:2]


def test_sixteen_bits_turned(tmp_path) -> None:
    pixels = picture(shape=(H, W), high=65536, kind=np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(Image.fromarray(pixels), tmp_path / "a.png", exif=exif)
    assert np.array_equal(read_image(path, channels=1), np.rot90(np.rint(pixels / 257), 3)[None])


def test_resized_by_bicubic(tmp_path) -> None:
    image = Image.fromarray(picture(shape=(40, 60, 3)))
    path = saved(image, tmp_path / "a.png")
    expected = np.asarray(image.resize((8, 5), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    assert np.array_equal(read_image(path, (5, 8)), expected)


def test_files_by_index(tmp_path) -> None:
    paths = [saved(Image.fromarray(picture(seed)), tmp_path / f"{seed}.png") for seed in range(3)]
    files = ImageFiles(tuple(map(str, paths)), size=(H, W))
    assert (len(files), files.shape) == (3, (3, 3, H, W))
    found = files[torch.tensor([2, 0])]
    assert found.dtype == torch.uint8
    assert found.equal(torch.from_numpy(np.stack([picture(2), picture(0)]).transpose(0, 3, 1, 2).copy()))


def test_names_of_any_letters_and_no_files(tmp_path) -> None:
    names = ["ä ö.png", "图.png", os.fsdecode(b"\xff.png")]
    paths = [saved(Image.fromarray(picture(seed)), tmp_path / name) for seed, name in enumerate(names)]
    files = ImageFiles(tuple(map(str, paths)), size=(H, W)).subset(torch.tensor([2, 0, 1]))
    assert files[torch.tensor([0])][0].equal(torch.from_numpy(picture(2).transpose(2, 0, 1).copy()))
    assert files[torch.tensor([2])][0].equal(torch.from_numpy(picture(1).transpose(2, 0, 1).copy()))
    assert files.subset(torch.arange(0))[torch.arange(0)].shape == (0, 3, H, W)


def refused(path: Path, match: str) -> None:
    for read in (read_image, image_size):
        with pytest.raises(UsageError, match=match) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_damaged(tmp_path) -> None:
    refused(tmp_path / "none.png", "There is no image at .*none.png")
    (tmp_path / "empty.png").touch()
    refused(tmp_path / "empty.png", "cannot be read")
    (tmp_path / "text.png").write_text("hello\nworld")
    refused(tmp_path / "text.png", "cannot be read")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("extension", ["png", "jpg", "bmp", "gif", "tif", "webp", "ppm"])
def test_cut_short(tmp_path, extension) -> None:
    path = saved(Image.fromarray(picture(shape=(64, 64, 3))), tmp_path / f"a.{extension}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UsageError, match="cannot be read") as caught:
        read_image(path)
    assert str(path) in str(caught.value)


def test_a_bomb(tmp_path) -> None:
    """A header that claims 60,000 x 60,000 pixels, in 100 bytes."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    for side in (10_000, 60_000):  # where Pillow warns, and where it refuses
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        path = tmp_path / f"{side}.png"
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
        refused(path, "has more than 89478485 pixels")


def test_formats_that_start_programs_are_not_opened(tmp_path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture()).save(buffer, "EPS")
    (tmp_path / "a.png").write_bytes(buffer.getvalue())
    refused(tmp_path / "a.png", "cannot be read")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("target", [1, 3])
def test_images_in_memory_are_converted_like_files(channels, target, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, channels, 12, 10), dtype=np.uint8)
    paths = [str(tmp_path / f"{at}.png") for at in range(3)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image[0] if channels == 1 else image.transpose(1, 2, 0)).save(path)
    expected = ImageFiles(tuple(paths), (5, 6), target)[torch.arange(3)]
    assert torch.equal(convert_images(torch.from_numpy(pixels), (target, 5, 6)), expected)
    files = convert_images(ImageFiles(tuple(paths), (12, 10), channels), (target, 5, 6))
    assert isinstance(files, ImageFiles)
    assert torch.equal(files[torch.arange(3)], expected)
    same = torch.from_numpy(pixels)
    assert convert_images(same, (channels, 12, 10)) is same
    assert convert_images(same.float(), (target, 5, 6)).shape == same.shape  # not converted

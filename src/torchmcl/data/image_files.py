import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import IOBase
from os import PathLike, fspath
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.data.lazy import Lazy
from torchmcl.errors import UsageError, damaged

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
# The formats are listed because Pillow would otherwise also open formats for which it runs other programs, like EPS.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
ORIENTATION = 0x0112  # the EXIF tag


@dataclass(frozen=True)
class ImageFiles(Lazy):
    """Image files that are read on demand: indexing with indices (B,) returns images (B, C, H, W) uint8.

    Args:
        paths: the paths of the files
        size: the height and width to which each image is resized
        channels: 3 for color, 1 for gray

    >>> ImageFiles(("a.png", "b.png"), size=(32, 48)).shape
    (2, 3, 32, 48)
    """

    paths: tuple[str, ...]
    size: tuple[int, int]
    channels: int = 3
    _packed: bytes = field(init=False, repr=False, compare=False)
    _ends: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # All paths are stored in one buffer, because a worker process would copy each Python object that it uses.
        encoded = [os.fsencode(path) for path in self.paths]
        object.__setattr__(self, "_packed", b"".join(encoded))
        object.__setattr__(self, "_ends", np.cumsum([0, *map(len, encoded)]))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape, (N, C, H, W)."""
        return (len(self.paths), self.channels, *self.size)

    @property
    def dtype(self) -> torch.dtype:
        """The data type, uint8."""
        return torch.uint8

    def read(self, index: Tensor, seeds: Tensor) -> Tensor:
        """Read the images at the indices, (B,) -> (B, C, H, W). Reading is deterministic, so `seeds` are not used."""
        images = (read_image(self._path(at), self.size, self.channels) for at in index.tolist())
        return self._stack([torch.from_numpy(image) for image in images])

    def _path(self, index: int) -> str:
        return os.fsdecode(self._packed[self._ends[index] : self._ends[index + 1]])

    def subset(self, index: Tensor) -> "ImageFiles":
        """Return the files at the indices (K,), in this order."""
        return ImageFiles(tuple(self.paths[at] for at in index.tolist()), self.size, self.channels)


def read_image(path: str | PathLike[str], size: Sequence[int] | None = None, channels: int = 3) -> NDArray[np.uint8]:
    """Read an image file as an array (C, H, W) uint8.

    EXIF orientation is applied, 16-bit values are scaled to 8 bits, and transparency is dropped. Only the first frame
    of an animation is read.

    Args:
        path: the path of the file
        size: the height and width to which the image is resized (bicubic); by default, its size does not change
        channels: 3 for color, 1 for gray

    Raises:
        UsageError: if the file is missing, damaged, too large or in an unsupported format.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
    ...     Image.new("L", (4, 2), 200).save(file.name)
    ...     read_image(file.name, channels=1)
    array([[[200, 200, 200, 200],
            [200, 200, 200, 200]]], dtype=uint8)
    """
    with open_image(path) as image:
        return image_array(image, size, channels)


def image_array(image: "Image", size: Sequence[int] | None = None, channels: int = 3) -> NDArray[np.uint8]:
    """Convert an open image to an array (C, H, W) uint8, in the same way as `read_image`."""
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(_to_eight_bits(image))
    if upright.mode in ("P", "PA"):  # convert via RGBA, since a palette may contain transparency
        upright = upright.convert("RGBA")
    picture = upright.convert("RGB" if channels == 3 else "L")
    if size is not None and picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    values = np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, channels)
    return np.array(values.transpose(2, 0, 1), order="C")  # a copy, because Pillow's array is read-only


def convert_images(images: Tensor | Lazy, shape: Sequence[int]) -> Tensor | Lazy:
    """Convert images (N, C, H, W) uint8 to another size (bicubic) and to gray or color, in the same way as files.

    Anything else, such as a table, or a number of channels other than 1 and 3, is returned unchanged.

    Args:
        images: images
        shape: the shape (C, H, W) of one converted image

    >>> convert_images(torch.full((2, 3, 32, 32), 9, dtype=torch.uint8), (1, 8, 8))[:, 0, 0, 0]
    tensor([9, 9], dtype=torch.uint8)
    """
    from PIL import Image

    possible = len(images.shape) == 4 and len(shape) == 3 and images.dtype == torch.uint8
    if tuple(images.shape[1:]) == tuple(shape) or not possible or not {images.shape[1], shape[0]} <= {1, 3}:
        return images
    if isinstance(images, ImageFiles):
        return replace(images, size=(shape[1], shape[2]), channels=shape[0])
    pixels = images if isinstance(images, Tensor) else images[torch.arange(len(images))]
    arrays = (pixels[:, 0] if pixels.shape[1] == 1 else pixels.movedim(1, -1)).cpu().numpy()
    pictures = map(Image.fromarray, arrays)
    return torch.from_numpy(np.stack([image_array(picture, shape[1:], shape[0]) for picture in pictures]))


def image_size(path: str | PathLike[str]) -> tuple[int, int]:
    """Read the height and width of an image from its header, with EXIF orientation applied."""
    with open_image(path) as image:
        return _upright_size(image)


def _upright_size(image: "Image") -> tuple[int, int]:
    # Pillow applies the orientation of TIFF files when it opens them.
    turned = image.format != "TIFF" and image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    return (image.width, image.height) if turned else (image.height, image.width)


def inspect_image(path: str | PathLike[str]) -> tuple[int, int]:
    """Check that an image can be decoded, as fast as its format permits, and return its height and width.

    Call this function within `pillow_warnings`.

    Raises:
        UsageError: as `read_image` does.
    """
    with _opened(path) as image:
        size = _upright_size(image)
        image.draft("RGB", (1, 1))  # a JPEG is decoded at an eighth of its size
        image.load()
        _to_eight_bits(image)
    return size


@contextmanager
def open_image(path: str | PathLike[str] | BinaryIO, name: str | None = None) -> Iterator["Image"]:
    """Open an image; within this context, any error becomes a UsageError that contains `name`."""
    with pillow_warnings(), _opened(path, name) as image:
        yield image


@contextmanager
def pillow_warnings() -> Iterator[None]:
    """Turn the warning about large images into an error, and ignore those about unusual metadata."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextmanager
def _opened(path: str | PathLike[str] | BinaryIO, name: str | None = None) -> Iterator["Image"]:
    from PIL import Image

    source = path if isinstance(path, IOBase) else fspath(path)  # type: ignore[arg-type]
    name = str(source) if name is None else name
    try:
        with Image.open(source, formats=FORMATS) as image:
            yield image
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"There is no image at {name}. Check the path.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UsageError(f"The image {name} has more than {Image.MAX_IMAGE_PIXELS} pixels. Make it smaller.") from error
    except Exception as error:  # decoders raise many kinds of exceptions for damaged bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"The image {name} cannot be read: {reason}. Supported formats are {', '.join(FORMATS)}."
        raise damaged(message, error) from error


def _to_eight_bits(image: "Image") -> "Image":
    """Scale 16-bit values to 8 bits, because Pillow's conversion would clip them at 255."""
    from PIL import Image

    if not (image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))):
        if image.mode in ("I", "F"):
            name = getattr(image, "filename", "")
            raise UsageError(f"The image {name} has 32 bits per channel, which is not supported. Convert it to 8 bits.")
        return image
    values = np.asarray(image).astype(np.uint32)
    scaled = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    scaled.info.update(image.info)
    scaled.getexif().update(image.getexif())
    return scaled

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
# Named, because Pillow would also open formats that start other programs (EPS).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
ORIENTATION = 0x0112  # EXIF


@dataclass(frozen=True)
class ImageFiles(Lazy):
    """Images on disk, read when asked for: of shape (N, C, H, W), indexed by (B,) -> (B, C, H, W) uint8.

    >>> ImageFiles(("a.png", "b.png"), size=(32, 48)).shape
    (2, 3, 32, 48)
    """

    paths: tuple[str, ...]
    size: tuple[int, int]
    channels: int = 3
    _packed: bytes = field(init=False, repr=False, compare=False)
    _ends: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # In one piece for worker processes: each Python object that they use would be copied into their memory.
        encoded = [os.fsencode(path) for path in self.paths]
        object.__setattr__(self, "_packed", b"".join(encoded))
        object.__setattr__(self, "_ends", np.cumsum([0, *map(len, encoded)]))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W)."""
        return (len(self.paths), self.channels, *self.size)

    @property
    def dtype(self) -> torch.dtype:
        """Bytes."""
        return torch.uint8

    def read(self, index: Tensor, draw: Tensor) -> Tensor:
        """(B,) -> (B, C, H, W); nothing is drawn."""
        read = (read_image(self._path(at), self.size, self.channels) for at in index.tolist())
        return self._stacked([torch.from_numpy(image) for image in read])

    def _path(self, at: int) -> str:
        return os.fsdecode(self._packed[self._ends[at] : self._ends[at + 1]])

    def subset(self, index: Tensor) -> "ImageFiles":
        """The files at these places, (K,), in this order."""
        return ImageFiles(tuple(self.paths[at] for at in index.tolist()), self.size, self.channels)


def read_image(path: str | PathLike[str], size: Sequence[int] | None = None, channels: int = 3) -> NDArray[np.uint8]:
    """An image as (C, H, W) uint8, upright, in colour (3 channels) or grey (1), resized to `size` (H, W) by bicubic.

    Sixteen bits are scaled to eight; of an animation the first picture is taken; transparency is dropped.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.NamedTemporaryFile(suffix=".png") as file:
    ...     Image.new("L", (4, 2), 200).save(file.name)
    ...     read_image(file.name, channels=1)
    array([[[200, 200, 200, 200],
            [200, 200, 200, 200]]], dtype=uint8)
    """
    with opened(path) as image:
        return pixels(image, size, channels)


def pixels(image: "Image", size: Sequence[int] | None = None, channels: int = 3) -> NDArray[np.uint8]:
    """What `read_image` makes of an image that is open already, (C, H, W) uint8.

    >>> from PIL import Image
    >>> pixels(Image.new("RGB", (4, 2)), size=(8, 8), channels=1).shape
    (1, 8, 8)
    """
    from PIL import Image, ImageOps

    upright = ImageOps.exif_transpose(_eight_bits(image))
    if upright.mode in ("P", "PA"):  # by way of RGBA, for a palette may hold transparency
        upright = upright.convert("RGBA")
    picture = upright.convert("RGB" if channels == 3 else "L")
    if size is not None and picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    values = np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, channels)
    return np.array(values.transpose(2, 0, 1), order="C")  # a copy, for Pillow's own cannot be written


def image_size(path: str | PathLike[str]) -> tuple[int, int]:
    """Height and width of an image as it is read, from its header alone."""
    with opened(path) as image:
        # Pillow turns TIFF by itself.
        turned = image.format != "TIFF" and image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
        return (image.width, image.height) if turned else (image.height, image.width)


@contextmanager
def opened(path: str | PathLike[str] | BinaryIO, name: str | None = None) -> Iterator["Image"]:
    """An image to be decoded within; whatever goes wrong there is an error that names the file, by `name` if given."""
    from PIL import Image

    source = path if isinstance(path, IOBase) else fspath(path)  # type: ignore[arg-type]
    name = str(source) if name is None else name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source, formats=FORMATS) as image:
                yield image
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"Expected an image at {name}, there is no such file.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UsageError(
            f"Expected an image of at most {Image.MAX_IMAGE_PIXELS} pixels, got more in {name}. Make it smaller."
        ) from error
    except Exception as error:  # decoders raise anything when bytes are damaged
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(
            f"Expected a whole image out of {', '.join(FORMATS)}, got {name}, which cannot be read: {reason}.", error
        ) from error


def _eight_bits(image: "Image") -> "Image":
    """Scale sixteen bits to eight, where Pillow's own conversion would clip at 255."""
    from PIL import Image

    sixteen = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if not sixteen:
        if image.mode in ("I", "F"):
            raise UsageError(
                f"Expected an image of 8 or 16 bits, got 32 in {getattr(image, 'filename', '')}, of a range unknown."
            )
        return image
    values = np.asarray(image).astype(np.uint32)
    scaled = Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    scaled.info.update(image.info)
    scaled.getexif().update(image.getexif())
    return scaled

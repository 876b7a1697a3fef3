"""Published samples of data sets, so that studies on a sample can be repeated with the complete data set.

`sample_hashes/NAME/PART.bin` contains the hash of each example of a part of a sample, in order. It was written with
`hashes`. If there is no file for a part, the sample contains the complete part.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from torchmcl.data.examples import DataSet, Examples
from torchmcl.data.image_files import ImageFiles
from torchmcl.errors import UsageError, known_name

FOLDER = Path(__file__).parent / "sample_hashes"
BYTES = 6  # per example; two of a million examples have the same hash with a probability of 0.2 %


def names() -> tuple[str, ...]:
    """Return the names of the samples, each of which starts with the name of its data set.

    >>> names()
    ('cifar100-20000', 'svhn-10000', 'tiny-imagenet-4000')
    """
    return tuple(sorted({path.parent.name for path in FOLDER.glob("*/*.bin")}))


def hashes(examples: Examples) -> list[bytes]:
    """Return a hash of each example: of its pixels, or of the published name of its file, and of its label.

    The label is part of the hash because CIFAR-100 contains some images twice, with different labels.

    >>> images = torch.tensor([[1, 2], [1, 2]], dtype=torch.uint8)
    >>> one, two = hashes(Examples(images, torch.tensor([0, 1]), ("cat", "dog")))
    >>> len(one), one == two
    (6, False)
    """
    contents = zip(_contents(examples), examples.labels.tolist(), strict=True)
    return [blake2b(content + label.to_bytes(4), digest_size=BYTES).digest() for content, label in contents]


def _contents(examples: Examples) -> Iterator[bytes]:
    """Return the bytes that identify each image. Names are independent of the decoder and of the size of the images."""
    images = examples.images
    if isinstance(images, ImageFiles):
        return (os.fsencode(os.path.basename(path)) for path in images.paths)
    pixels = images if isinstance(images, Tensor) else images[torch.arange(len(images))]
    return (image.tobytes() for image in pixels.cpu().contiguous().numpy())


def take_sample(data: DataSet, name: str) -> DataSet:
    """Return a data set with the examples of a sample, in the order of the sample.

    Raises:
        UsageError: if the sample is unknown or of another data set, or if some of its examples are not in the data set.
    """
    known_name("sample", name, names())
    if name.rpartition("-")[0] != data.name:
        raise UsageError(f"{name} is not a sample of {data.name}. Choose another sample, or remove data_sample.")
    files = {part: FOLDER / name / f"{part}.bin" for part in data.parts}
    taken = {part: _take(data.parts[part], path, part) for part, path in files.items() if path.is_file()}
    return replace(data, parts={**data.parts, **taken})


def _take(examples: Examples, path: Path, part: str) -> Examples:
    content = path.read_bytes()
    wanted = [content[at : at + BYTES] for at in range(0, len(content), BYTES)]
    position = {key: at for at, key in enumerate(hashes(examples))}
    if absent := sum(key not in position for key in wanted):
        missing = f"{absent:,} of the {len(wanted):,} images of the sample {path.parent.name}"
        raise UsageError(f"{missing} are not in the {part} set. Download the data set again, or remove data_sample.")
    return examples.subset(torch.tensor([position[key] for key in wanted]))

"""Published samples of training sets, so that studies on a sample can be repeated with the complete data set.

`sample_hashes/NAME.bin` contains the hash of each image of a sample. It was written with `hashes`.
"""

from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from torchmcl.data.examples import Examples
from torchmcl.errors import UsageError, known_name

FOLDER = Path(__file__).parent / "sample_hashes"
BYTES = 6  # per image; two of a million images have the same hash with a probability of 0.2 %


def names() -> tuple[str, ...]:
    """Return the names of the samples.

    >>> names()
    ('cifar100-20000',)
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.bin")))


def hashes(images: Tensor, labels: Tensor) -> list[bytes]:
    """Return a hash of the pixels and the label of each image, (N, …) uint8 and (N,).

    The label is part of the hash because CIFAR-100 contains some images twice, with different labels.

    >>> one, two = hashes(torch.tensor([[1, 2], [1, 2]], dtype=torch.uint8), torch.tensor([0, 1]))
    >>> len(one), one == two
    (6, False)
    """
    contents = zip(images.cpu().contiguous().numpy(), labels.tolist(), strict=True)
    return [blake2b(image.tobytes() + label.to_bytes(4), digest_size=BYTES).digest() for image, label in contents]


def take_sample(examples: Examples, name: str) -> Examples:
    """Return the examples of a sample, in its order.

    Raises:
        UsageError: if the sample is unknown, or if some of its images are not among the examples.
    """
    known_name("sample", name, names())
    content = (FOLDER / f"{name}.bin").read_bytes()
    wanted = [content[at : at + BYTES] for at in range(0, len(content), BYTES)]
    if not isinstance(examples.images, Tensor):
        raise UsageError("A sample can be taken only of images in memory. Raise data_in_memory, or remove data_sample.")
    position = {key: at for at, key in enumerate(hashes(examples.images, examples.labels))}
    if absent := sum(key not in position for key in wanted):
        raise UsageError(f"{absent:,} of the {len(wanted):,} images of the sample {name} are not in the training set.")
    return examples.subset(torch.tensor([position[key] for key in wanted]))

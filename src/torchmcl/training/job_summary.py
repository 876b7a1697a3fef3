"""What a training run starts with, in a few lines: the data, the split and the model."""

from typing import TYPE_CHECKING

from torchmcl._utils.console import shortened
from torchmcl.data.examples import DataSet
from torchmcl.data.external import External

if TYPE_CHECKING:
    from torchmcl.training.fitting import Job


def data_lines(data: DataSet) -> list[str]:
    """Describe a data set: its examples, classes and sizes, and how it is split.

    >>> from torchmcl.data import load
    >>> print(*data_lines(load("digits", validation=0.1)), sep="\\n")
    Data: digits, 1,797 images (1 x 8 x 8), 10 classes (0, 1, 2, 3, 4, 5, …)
    Split: 1,293 for training, 145 for validation, 359 for testing
    """
    train = data.train
    if isinstance(train, External):
        return [f"Data: {data.name}, read from data loaders"]
    shape = " x ".join(map(str, train.images.shape[1:]))
    kind = "images" if len(train.images.shape) == 4 else "rows"
    about = f"Data: {data.name}, {sum(map(len, data.parts.values())):,} {kind} ({shape})"
    if names := () if train.continuous else train.label_names:
        about += f", {len(names)} {'groups' if train.groups else 'classes'} ({shortened(names, 6)})"
    words = {"train": "training", "validation": "validation", "test": "testing"}
    sizes = [f"{len(data.parts[part]):,} for {word}" for part, word in words.items() if part in data.parts]
    return [about, f"Split: {', '.join(sizes)}", *data.notes]


def model_line(job: "Job", device: object) -> str:
    """Describe the method, the networks and the device of a training run."""
    weights = list(job.ensemble.parameters())
    total, trained = sum(p.numel() for p in weights), sum(p.numel() for p in weights if p.requires_grad)
    count = f"{total:,} weights" + (f", {trained:,} of them trained" if trained < total else "")
    network, members = job.model_config.network or "own networks", job.method.members
    return f"Model: {job.method.name}, {members} x {network}, {count}, on {device}"

"""Every reader of files with files that it reads, for whoever damages them: tests by chance, atheris by coverage."""

import io
import pickle
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import scipy.io
import torch

from torchmcl._utils import plain_yaml
from torchmcl.data import pickles
from torchmcl.data.datasets import cifar, npz, svhn
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import model_files
from torchmcl.serialization.checkpoint import read as read_checkpoint
from torchmcl.serialization.hub import read_metrics
from torchmcl.serialization.model_config import ModelConfig

CIFAR100_BINARY, CIFAR10_PICKLED = cifar.CIFAR100[0], cifar.CIFAR10[1]


def binary() -> list[bytes]:
    return [bytes([3, 7]) + bytes(range(256)) * 12, (bytes([1, 2]) + bytes(cifar.PIXELS)) * 2]


def pickled() -> list[bytes]:
    batch = {
        "data": np.zeros((2, cifar.PIXELS), np.uint8),
        "labels": [3, 4],
        "batch_label": "one",
        b"filenames": [b"a"],
    }
    small = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [1, 2]}
    return [pickle.dumps(batch, 2), *(pickle.dumps(small, protocol) for protocol in (0, 2, 4))]


def matlab() -> list[bytes]:
    content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [10]], np.uint8)}
    made = []
    for packed in (True, False):
        scipy.io.savemat(buffer := io.BytesIO(), content | {"s": {"a": 1}, "text": "b"}, do_compression=packed)
        made.append(buffer.getvalue())
    return made


def arrays() -> list[bytes]:
    made = []
    for save in (np.savez, np.savez_compressed):
        save(buffer := io.BytesIO(), x=np.arange(24, dtype=np.uint8).reshape(6, 4), y=np.array(list("aabbcc")))
        made.append(buffer.getvalue())
    return made


def model() -> list[bytes]:
    about = ModelConfig("ie", 1, ("a", "b"), "mlp", (2,), "none", "float32", network_options={"inputs": 2, "width": 2})
    with tempfile.TemporaryDirectory() as folder:
        Specialists(about, *about.build()).save(folder)
        return [(Path(folder) / model_files.MODEL).read_bytes()]


def config() -> list[bytes]:
    return [b"method: amcl\nmembers: 3\ndata_classes: [a, b]\nbeta: 0.01\n", b"{a: {b: [1, 2.5, null, true, '\\n']}}"]


def checkpoint() -> list[bytes]:
    torch.save({"format": 1, "at": {"epoch": 2, "flow": [torch.zeros(2, 2)]}}, buffer := io.BytesIO())
    return [buffer.getvalue()]


def figures() -> list[bytes]:
    return [b'{"top1_error": 3.5, "members": [1.0, 2.0], "share": {"a": null}}']


def _named(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    """A reader of a folder, whose file has a name of its own."""

    def read_there(path: Path) -> object:
        path.rename(named := path.with_name(name))
        return read(named.parent)

    return read_there


# Files to begin with, and what reads them.
READERS: dict[str, tuple[Callable[[], list[bytes]], Callable[[Path], object]]] = {
    "cifar-binary": (cache(binary), lambda path: cifar._binary(path, CIFAR100_BINARY)),
    "cifar-pickle": (cache(pickled), lambda path: cifar._pickled(path, CIFAR10_PICKLED)),
    "pickle": (cache(pickled), pickles.read_pickle),
    "matlab": (cache(matlab), svhn.read),
    "npz": (cache(arrays), lambda path: npz.load(str(path))),
    "model.safetensors": (cache(model), _named(model_files.MODEL, model_files.read)),
    "config.yaml": (cache(config), plain_yaml.read),
    "metrics.json": (cache(figures), _named("metrics.json", read_metrics)),
    "checkpoint": (cache(checkpoint), read_checkpoint),
}

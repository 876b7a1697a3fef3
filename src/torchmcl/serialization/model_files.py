"""Model folders, which contain a self-contained model.safetensors and a config.yaml that must match it."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from torchmcl._utils import atomic, plain_yaml
from torchmcl.errors import DamagedFileError, UsageError, damaged
from torchmcl.serialization.legacy import upgraded_config
from torchmcl.serialization.model_config import ModelConfig

MODEL, CONFIG = "model.safetensors", "config.yaml"
TRAINED = ("method", "network", "members", "exchange", "preset", "unit")  # stored in both runs and models


def write(folder: Path, model_config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a model. Its configuration is also written to config.yaml, unless the folder contains that of a run."""
    atomic.make_folder(folder)
    of_run = (folder / CONFIG).is_file() and "sha256" not in read_config(folder)
    if of_run and (other := _mismatch(read_config(folder), model_config, folder)):
        raise UsageError(other)
    if not of_run:
        (folder / CONFIG).unlink(missing_ok=True)  # removed first, so that an interruption leaves no mismatch
    about = write_file(folder / MODEL, model_config, tensors)
    if not of_run:
        atomic.write(folder / CONFIG, yaml.safe_dump(about, sort_keys=False, allow_unicode=True))


def write_file(path: Path, model_config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a configuration and tensors to one file; return the configuration with the checksum."""
    from safetensors.torch import save

    tensors = _unshared({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    about = model_config.as_dict()
    about = {**about, "sha256": checksum(about, tensors)}
    # The metadata is a single entry, because safetensors writes several entries in arbitrary order, and equal models
    # must give equal bytes.
    atomic.write(path, save(tensors, metadata={"torchmcl": json.dumps(about)}))
    return about


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy each tensor that shares memory with an earlier one, because safetensors does not support shared memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    return result


def read(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read the configuration and the weights of a model, on the CPU. Reading never executes code from the files.

    Raises:
        UsageError: if the folder contains no model.
        DamagedFileError: if the model is damaged, or its config.yaml belongs to another model.
    """
    path = folder / MODEL
    if not path.is_file():
        raise UsageError(f"There is no {MODEL} in {folder}. Train a model with: torchmcl train")
    model_config, tensors, digest = read_file(path)
    if (folder / CONFIG).is_file() and (other := _mismatch(read_config(folder), model_config, folder, digest)):
        raise DamagedFileError(other)
    return model_config, tensors


def read_file(path: Path) -> tuple[ModelConfig, dict[str, Tensor], str | None]:
    """Read the configuration, the tensors and the checksum in a file; raise DamagedFileError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["torchmcl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = about.pop("sha256", None)
        model_config = ModelConfig.of(about)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RecursionError) as problem:
        raise damaged(f"Cannot read the model {path}: {problem}.", problem) from problem
    if about["version"] > 1 and digest != checksum(about, tensors):  # version 1 has no checksum
        raise DamagedFileError(f"Cannot read the model {path}: checksum mismatch. Copy or save the model again.")
    return model_config, tensors, digest


def checksum(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 hash of a model's configuration and of its tensors' names, types, shapes and bytes.

    >>> checksum({}, {"weight": torch.zeros(2)}) == checksum({}, {"weight": torch.tensor([0.0, 1e-30])})
    False
    """
    digest = sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.yaml: the configuration of a run, or of a saved model."""
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"There is no {CONFIG} in {folder}. Choose the folder of a run.")
    return plain_yaml.read(path)


def training_config(folder: Path) -> dict[str, Any]:
    """Read the resolved configuration of a run of this or an earlier version; raise UsageError for a saved model."""
    config = read_config(folder)
    if "sha256" in config or "data" not in config:
        raise UsageError(f"{folder} contains a model without its training configuration. Choose the folder of a run.")
    return upgraded_config(config)


def _mismatch(config: dict[str, Any], model_config: ModelConfig, folder: Path, digest: str | None = None) -> str | None:
    """Describe the first difference between config.yaml and the model; in a run, only `TRAINED` fields are compared."""
    if "sha256" in config:
        expected, got = {**model_config.as_dict(), "sha256": digest}, config
    else:
        expected = {name: value for name in TRAINED if (value := getattr(model_config, name)) is not None}
        got = {name: config.get(name, value) for name, value in expected.items()}
    if not (wrong := sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))):
        return None
    name = wrong[0]
    return (
        f"{CONFIG} in {folder} does not match {MODEL}: {name} is {got.get(name)}, expected "
        f"{expected.get(name)}. Restore the matching {CONFIG}, or remove it."
    )

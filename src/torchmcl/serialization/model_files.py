"""A model in a folder: model.safetensors, which is whole by itself, and a config.yaml that must belong to it."""

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
TRAINED = ("method", "network", "members", "exchange", "preset", "unit")  # what a run's config.yaml says of a model


def write(folder: Path, model_config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write a model; what a training wrote into config.yaml stays, else the blueprint goes there for people to read."""
    from safetensors.torch import save

    tensors = _apart({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    about = model_config.as_dict()
    digest = checksum(about, tensors)
    atomic.make_folder(folder)
    config = read_config(folder) if (folder / CONFIG).is_file() else None
    if config is not None and "sha256" not in config and (other := _mismatch(config, model_config, folder)):
        raise UsageError(other)
    # One entry, for safetensors writes several in any order, and the same model must give the same bytes.
    metadata = {"torchmcl": json.dumps({**about, "sha256": digest})}
    if config is not None and "sha256" in config:
        (folder / CONFIG).unlink()  # first, so that a process killed from here on leaves no pair that does not fit
    atomic.write(folder / MODEL, save(tensors, metadata=metadata))
    if config is None or "sha256" in config:
        text = yaml.safe_dump(_config(model_config, digest), sort_keys=False, allow_unicode=True)
        atomic.write(folder / CONFIG, text)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with copies of those that share memory with one before them, which safetensors refuses."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return found


def read(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read it back, on the CPU; nothing in the files can execute.

    Raises:
        UsageError: if there is no model in the folder.
        DamagedFileError: if the model is damaged, or its config.yaml belongs to another model.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / MODEL
    if not path.is_file():
        raise UsageError(f"Expected a trained run with {MODEL} in it, got {folder}. Train one: torchmcl train.")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["torchmcl"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = about.pop("sha256", None)
        model_config = ModelConfig.of(about)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RecursionError) as problem:
        reason = " ".join(str(problem).split())
        raise damaged(f"Expected a model that torchmcl wrote, got {path}: {reason}.", problem) from problem
    if about["version"] > 1 and digest != checksum(about, tensors):  # the first version had none
        raise DamagedFileError(
            f"Expected the model that torchmcl wrote, got another in {path}: its checksum does not fit."
        )
    if (folder / CONFIG).is_file() and (other := _mismatch(read_config(folder), model_config, folder, digest)):
        raise DamagedFileError(other)
    return model_config, tensors


def checksum(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of what a model says of itself and of its tensors' names, types, shapes and bytes.

    >>> checksum({}, {"weight": torch.zeros(2)}) == checksum({}, {"weight": torch.tensor([0.0, 1e-30])})
    False
    """
    digest = sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """What config.yaml says: the options that a run was started with, or a saved model's blueprint."""
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"Expected the folder of a run, with {CONFIG} in it, got {folder}.")
    return plain_yaml.read(path)


def training_config(folder: Path) -> dict[str, Any]:
    """The resolved configuration of a run, of this version or an earlier one; a saved model does not have it."""
    config = read_config(folder)
    if "sha256" in config or "data" not in config:
        raise UsageError(f"Expected the folder of a run, got {folder}, which does not say what it was trained on.")
    return upgraded_config(config)


def _config(model_config: ModelConfig, digest: str | None) -> dict[str, Any]:
    return {**model_config.as_dict(), "sha256": digest}


def _mismatch(config: dict[str, Any], model_config: ModelConfig, folder: Path, digest: str | None = None) -> str | None:
    """Describe how config.yaml differs from the model's: a saved one says all, a run's only what was trained."""
    if "sha256" in config:
        expected, got = _config(model_config, digest), config
    else:
        expected = {name: value for name in TRAINED if (value := getattr(model_config, name)) is not None}
        got = {name: config.get(name, value) for name, value in expected.items()}
    if not (wrong := sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))):
        return None
    name = wrong[0]
    return (
        f"Expected in {folder} the {CONFIG} that belongs to {MODEL}, got one of another model, "
        f"with {name} {got.get(name)} for {expected.get(name)}. Put its own back, or remove it."
    )

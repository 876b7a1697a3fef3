"""Stored weights of runs, without those of a frozen network."""

from pathlib import Path

from torchmcl.ensemble import Ensemble
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import model_files

SUFFIX = ".safetensors"


def find(results: Path, scale: str, hash: str) -> Path | None:
    """Return the file with the weights of a run, which may be in the folder of another study, or None."""
    return next(iter(sorted(results.glob(f"*/{scale}/{hash}{SUFFIX}"))), None)


def write_weights(run: Path, path: Path) -> None:
    """Write the weights of a run to one file, without those of a frozen trunk, which a package provides."""
    model_config, tensors = model_files.read(run)
    absent = trunk_names(model_config.build()[1])
    model_files.write_file(path, model_config, {name: part for name, part in tensors.items() if name not in absent})


def read_weights(path: Path) -> Specialists:
    """Load a model from a file that `write_weights` has written."""
    model_config, tensors, _ = model_files.read_file(path)
    method, ensemble = model_config.build(pretrained=True)
    state = {f"ensemble.{name}": tensor for name, tensor in ensemble.state_dict().items()}
    trunk = {name: state[name] for name in trunk_names(ensemble)}
    return Specialists.of_tensors(model_config, method, ensemble, {**trunk, **tensors}, path)


def trunk_names(ensemble: Ensemble) -> set[str]:
    """Return the names under which a model stores the tensors of its frozen trunk."""
    prefixes = [f"ensemble.{name}." for name, module in ensemble.named_modules() if module is ensemble.trunk]
    return {name for name in (f"ensemble.{one}" for one in ensemble.state_dict()) if name.startswith(tuple(prefixes))}

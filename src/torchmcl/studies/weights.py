"""Stored weights of runs, without those of a frozen network, and the list of all files with their checksums."""

import re
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path, PurePosixPath

from torchmcl._utils import atomic
from torchmcl._utils.locks import exclusive_lock
from torchmcl.ensemble import Ensemble
from torchmcl.errors import DamagedFileError
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import model_files

SUFFIX = ".safetensors"
LIST = "weights.sha256"  # in the folder of the results, in the format of sha256sum


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


def read_list(results: Path) -> dict[str, str]:
    """Return the SHA-256 of each listed file, keyed by its path in the folder of the results.

    >>> import tempfile
    >>> read_list(Path(tempfile.mkdtemp()))
    {}
    """
    path = results / LIST
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    parts = [re.fullmatch(r"([0-9a-f]{64})  (\S+)", line) for line in lines]
    if (wrong := next((at for at, part in enumerate(parts, 1) if part is None), None)) is not None:
        raise DamagedFileError(f"Cannot read {path}: line {wrong} is not a SHA-256 and a file. Restore the file.")
    return {part[2]: part[1] for part in parts if part is not None}


def add_to_list(results: Path, path: Path) -> None:
    """Add a file with weights to the list, or update its SHA-256."""
    with exclusive_lock(results / f".{LIST}.lock"):
        listed = read_list(results) | {path.relative_to(results).as_posix(): _digest(path)}
        atomic.write(results / LIST, "".join(f"{digest}  {name}\n" for name, digest in sorted(listed.items())))


def compare_with_list(results: Path, study: str, scale: str, hashes: Collection[str]) -> Iterator[str]:
    """Yield one line for each file of a study, or of the runs with these hashes, that differs from the list."""
    listed, folder = read_list(results), PurePosixPath(study, scale)
    stored = {path.relative_to(results).as_posix() for path in (results / folder).glob(f"*{SUFFIX}")}
    own = {name for name in map(PurePosixPath, listed) if name.parent == folder or name.stem in hashes}
    for name in sorted(stored | {str(path) for path in own}):
        path = results / name
        if name not in listed:
            yield f"{path} is not listed in {results / LIST}. Remove it, or store it with: torchmcl study run --weights"
        elif not path.is_file():
            yield f"{path} is missing. Restore it, or remove its line from {results / LIST}."
        elif _digest(path) != listed[name]:
            yield f"{path} differs from its SHA-256 in {results / LIST}. Restore it."


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def trunk_names(ensemble: Ensemble) -> set[str]:
    """Return the names under which a model stores the tensors of its frozen trunk."""
    prefixes = [f"ensemble.{name}." for name, module in ensemble.named_modules() if module is ensemble.trunk]
    return {name for name in (f"ensemble.{one}" for one in ensemble.state_dict()) if name.startswith(tuple(prefixes))}

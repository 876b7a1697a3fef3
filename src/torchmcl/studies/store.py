"""The store: `results/STUDY/SCALE/HASH.json`, one file a run; results from many machines merge by copying files."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl import errors
from torchmcl._utils import atomic
from torchmcl.serialization.checksum import add_checksum, verify_checksum
from torchmcl.studies.spec import Spec, digest

FORMAT = 2  # since 2, configurations are resolved
NEEDED = ("configuration", "hash", "seed", "test", "validation", "wrong", "share", "purity", "assigned", "records")

Result = dict[str, Any]


class Store:
    """Results of studies in a folder.

    >>> import tempfile
    >>> Store(tempfile.mkdtemp()).read("ablation", "smoke")
    {}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, study: str, scale: str, spec: Spec) -> Path:
        """Where the result of a run is, or will be."""
        return self.folder / study / scale / f"{spec.hash}.json"

    def read(self, study: str, scale: str) -> dict[str, Result]:
        """All results of a study at a scale, by hash."""
        return {path.stem: read(path) for path in sorted((self.folder / study / scale).glob("*.json"))}

    def find(self, study: str, scale: str, spec: Spec) -> Result | None:
        """The result of a run with all that is to be recorded of it: the study's own, else one of another study."""
        own = self.path(study, scale, spec)
        for path in (own, *sorted(self.folder.glob(f"*/{scale}/{spec.hash}.json"))):
            if path.is_file() and set(spec.record) <= set((result := read(path))["records"]):
                return result
        return None

    def has(self, study: str, scale: str, spec: Spec) -> bool:
        """Whether the study's own folder has the result."""
        path = self.path(study, scale, spec)
        return path.is_file() and set(spec.record) <= set(read(path)["records"])

    def write(self, study: str, scale: str, spec: Spec, result: Result) -> Path:
        """Keep a result, whole or not at all."""
        path = self.path(study, scale, spec)
        atomic.make_folder(path.parent)
        kept = {"format": FORMAT, "study": study, "scale": scale, **without(result, "format", "study", "scale")}
        validate(kept, path)
        atomic.write(path, "\n".join(lines(add_checksum(kept))) + "\n")
        return path


def read(path: Path) -> Result:
    """Read one result.

    Raises:
        DamagedFileError: if it is not a whole result.
    """
    try:
        result = json.loads(path.read_text())
    except (ValueError, RecursionError, OSError) as problem:
        raise damaged(path, problem) from problem
    validate(result, path)
    try:
        return verify_checksum(result)
    except ValueError as problem:
        raise damaged(path, problem) from problem


def validate(result: Any, path: Path) -> None:
    """Refuse what is not a whole result of the run that the file is named after."""
    if isinstance(result, dict) and result.get("format") == 1:
        raise errors.UsageError(
            f"Expected a result of format {FORMAT} in {path}, got format 1, whose configuration leaves defaults open. "
            f"Try: python results/migrate.py {path.parent}"
        )
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise damaged(path, f"no result of format {FORMAT}")
    if missing := [name for name in NEEDED if name not in result]:
        raise damaged(path, f"nothing on {', '.join(missing)}")
    try:
        expected, misses = digest(result["configuration"]), wrong(result)
        told = (result["test"]["oracle_error"], result["test"]["top1_error"])
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise damaged(path, f"{type(problem).__name__}: {problem}") from problem
    if not expected == result["hash"] == path.stem:
        raise damaged(path, f"a configuration of hash {expected}")
    counted = (100 * misses[1:].min(0).mean(), 100 * misses[0].mean())
    if not np.allclose(counted, told, atol=0.02):
        raise damaged(path, f"errors {told} where its examples give {tuple(round(float(e), 4) for e in counted)}")


def damaged(path: Path, problem: object) -> errors.UsageError:
    """The error for a file that is no result."""
    return errors.damaged(
        f"Expected a whole result in {path}, got {problem}. Remove the file and run the study again.", problem
    )


def pack(errors: NDArray[np.floating]) -> dict[str, Any]:
    """Error of the ensemble, then of each member, on each example, (1 + M, N): bits where all are 0 or 1, else percent.

    >>> pack(np.array([[0.0, 1.0], [1.0, 1.0]]))
    {'shape': [2, 2], 'bits': 'cA=='}
    """
    shape = list(errors.shape)
    if np.isin(errors, (0, 1)).all():
        return {"shape": shape, "bits": base64.b64encode(np.packbits(errors.astype(bool)).tobytes()).decode()}
    return {"shape": shape, "percent": np.round(100 * errors, 4).ravel().tolist()}


def pack_bytes(values: NDArray[np.uint8]) -> dict[str, Any]:
    """An array of bytes, such as an image, for JSON.

    >>> unpack_bytes(pack_bytes(np.array([[1, 2]], dtype=np.uint8)))
    array([[1, 2]], dtype=uint8)
    """
    return {"shape": list(values.shape), "bytes": base64.b64encode(values.tobytes()).decode()}


def unpack_bytes(kept: dict[str, Any]) -> NDArray[np.uint8]:
    """The array back."""
    return np.frombuffer(base64.b64decode(kept["bytes"]), dtype=np.uint8).reshape(kept["shape"])


def wrong(result: Result) -> NDArray[np.float64]:
    """Whether the ensemble, then each member, is wrong on each test example (of masks, by how much), (1 + M, N).

    >>> wrong({"wrong": {"shape": [2, 2], "bits": "cA=="}})
    array([[0., 1.],
           [1., 1.]])
    """
    kept = result["wrong"]
    rows, columns = kept["shape"]
    if "percent" in kept:
        return np.asarray(kept["percent"], dtype=np.float64).reshape(rows, columns) / 100
    packed = np.frombuffer(base64.b64decode(kept["bits"], validate=True), dtype=np.uint8)
    if len(packed) != (rows * columns + 7) // 8:
        raise ValueError(f"{len(packed)} bytes of bits for {rows} x {columns}")
    return np.unpackbits(packed, count=rows * columns).reshape(rows, columns).astype(np.float64)


def without(result: Result, *names: str) -> Result:
    """The rest of a result."""
    return {name: value for name, value in result.items() if name not in names}


def lines(result: Result) -> Iterator[str]:
    """JSON with one entry a line, so that a difference between two files can be read."""
    entries = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in result.items()]
    yield "{"
    yield from (f" {entry}," for entry in entries[:-1])
    yield from (f" {entry}" for entry in entries[-1:])
    yield "}"

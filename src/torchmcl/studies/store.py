"""The result store, `results/STUDY/SCALE/HASH.json`: one file per run, so that results can be merged by copying."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmcl import errors
from torchmcl._utils import atomic
from torchmcl.serialization.checksum import add_checksum, verify_checksum
from torchmcl.studies.spec import Spec, digest

FORMAT = 2  # since format 2, configurations include all defaults
REQUIRED = ("configuration", "hash", "seed", "test", "validation", "wrong", "share", "purity", "assigned", "records")

Result = dict[str, Any]


class Store:
    """A folder with the results of studies.

    >>> import tempfile
    >>> Store(tempfile.mkdtemp()).read("ablation", "smoke")
    {}
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, study: str, scale: str, spec: Spec) -> Path:
        """Return the path of a run's result, which need not exist."""
        return self.folder / study / scale / f"{spec.hash}.json"

    def read(self, study: str, scale: str) -> dict[str, Result]:
        """Return all results of a study at a scale, keyed by the hash of the run."""
        return {path.stem: read(path) for path in sorted((self.folder / study / scale).glob("*.json"))}

    def find(self, study: str, scale: str, spec: Spec) -> Result | None:
        """Return a result with all records of the run, preferably from this study, or None if there is none."""
        own = self.path(study, scale, spec)
        for path in (own, *sorted(self.folder.glob(f"*/*/{spec.hash}.json"))):
            if path.is_file() and set(spec.record) <= set((result := read(path))["records"]):
                return result
        return None

    def has(self, study: str, scale: str, spec: Spec) -> bool:
        """Return whether the study's own folder contains the result of a run, including all records of the run."""
        path = self.path(study, scale, spec)
        return path.is_file() and set(spec.record) <= set(read(path)["records"])

    def write(self, study: str, scale: str, spec: Spec, result: Result) -> Path:
        """Write a result atomically and return its path."""
        path = self.path(study, scale, spec)
        atomic.make_folder(path.parent)
        header = {"format": FORMAT, "study": study, "scale": scale}
        stored = header | {name: value for name, value in result.items() if name not in header}
        validate(stored, path)
        # One entry per line, so that differences between files are readable.
        entries = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in add_checksum(stored).items())
        atomic.write(path, "{\n" + ",\n".join(entries) + "\n}\n")
        return path


def read(path: Path) -> Result:
    """Read one result.

    Raises:
        DamagedFileError: if the result is incomplete or inconsistent.
    """
    try:
        result = json.loads(path.read_text())
    except (ValueError, RecursionError, OSError) as problem:
        raise _damaged(path, problem) from problem
    validate(result, path)
    try:
        return verify_checksum(result)
    except ValueError as problem:
        raise _damaged(path, problem) from problem


def validate(result: Any, path: Path) -> None:
    """Check that a result is complete and consistent, and that it belongs to the run that the file is named after."""
    if isinstance(result, dict) and result.get("format") == 1:
        raise errors.UsageError(
            f"{path} has format 1, in which the configuration does not include defaults. "
            f"Convert it to format {FORMAT}: python results/migrate.py {path.parent}"
        )
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise _damaged(path, f"the file is not in format {FORMAT}")
    if missing := [name for name in REQUIRED if name not in result]:
        raise _damaged(path, f"the file does not contain {', '.join(missing)}")
    try:
        expected, wrong = digest(result["configuration"]), example_errors(result)
        squared = "squared" in result["wrong"]
        names = ("oracle_rmse", "rmse") if squared else ("oracle_error", "top1_error")
        stated = tuple(result["test"][name] for name in names)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise _damaged(path, f"{type(problem).__name__}: {problem}") from problem
    if not expected == result["hash"] == path.stem:
        raise _damaged(path, f"the hash of its configuration is {expected}")
    means = np.array([wrong[1:].min(0).mean(), wrong[0].mean()])
    counted = np.sqrt(means) if squared else 100 * means
    rounding = 1e-4 if "bits" in result["wrong"] else 0.02  # of masks, the errors of each image are rounded
    if not np.allclose(counted, stated, rtol=1e-4 if squared else 0, atol=0 if squared else rounding):
        raise _damaged(path, f"its errors are {stated}, but its examples give {tuple(np.round(counted, 4).tolist())}")


def _damaged(path: Path, problem: object) -> errors.UsageError:
    reason = str(problem).rstrip(".")
    return errors.damaged(f"The result {path} is damaged: {reason}. Remove the file and run the study again.", problem)


def pack(errors: NDArray[np.floating]) -> dict[str, Any]:
    """Encode the errors of the ensemble and of each member on each example for JSON, as bits if all errors are 0 or 1.

    Args:
        errors: (1 + M, N), the ensemble first; fractions of wrong pixels for masks

    >>> pack(np.array([[0.0, 1.0], [1.0, 1.0]]))
    {'shape': [2, 2], 'bits': 'cA=='}
    """
    shape = list(errors.shape)
    if np.isin(errors, (0, 1)).all():
        return {"shape": shape, "bits": base64.b64encode(np.packbits(errors.astype(bool)).tobytes()).decode()}
    return {"shape": shape, "percent": np.round(100 * errors, 4).ravel().tolist()}


def pack_squared(errors: NDArray[np.floating]) -> dict[str, Any]:
    """Encode the squared errors of the ensemble and of the best hypothesis on each example, (2, N), for JSON.

    >>> pack_squared(np.array([[0.25, 4.0], [0.0, 1.0]]))
    {'shape': [2, 2], 'squared': [0.25, 4.0, 0.0, 1.0]}
    """
    return {"shape": list(errors.shape), "squared": [float(f"{error:.6g}") for error in errors.ravel()]}


def pack_bytes(values: NDArray[np.uint8]) -> dict[str, Any]:
    """Encode a uint8 array, such as an image, for JSON.

    >>> unpack_bytes(pack_bytes(np.array([[1, 2]], dtype=np.uint8)))
    array([[1, 2]], dtype=uint8)
    """
    return {"shape": list(values.shape), "bytes": base64.b64encode(values.tobytes()).decode()}


def unpack_bytes(packed: dict[str, Any]) -> NDArray[np.uint8]:
    """Decode an array encoded by `pack_bytes`."""
    return np.frombuffer(base64.b64decode(packed["bytes"]), dtype=np.uint8).reshape(packed["shape"])


def example_errors(result: Result) -> NDArray[np.float64]:
    """Return the errors of the ensemble and of each member on each test example, (1 + M, N) (see `pack`).

    For numbers to predict, return the squared errors of the ensemble and of the best hypothesis, (2, N).

    >>> example_errors({"wrong": {"shape": [2, 2], "bits": "cA=="}})
    array([[0., 1.],
           [1., 1.]])
    """
    packed = result["wrong"]
    rows, columns = packed["shape"]
    if "squared" in packed:
        return np.asarray(packed["squared"], dtype=np.float64).reshape(rows, columns)
    if "percent" in packed:
        return np.asarray(packed["percent"], dtype=np.float64).reshape(rows, columns) / 100
    bits = np.frombuffer(base64.b64decode(packed["bits"], validate=True), dtype=np.uint8)
    if len(bits) != (rows * columns + 7) // 8:
        raise ValueError(f"the errors have {len(bits)} bytes for {rows} x {columns} values")
    return np.unpackbits(bits, count=rows * columns).reshape(rows, columns).astype(np.float64)

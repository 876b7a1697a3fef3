"""Features of images on disk, computed once and shared by all runs with the same trunk and preprocessing.

A store is a folder with immutable files. Each file contains the features of some images and the hashes of these images,
so that subsets and other splits of a data set find their features too.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl._utils import atomic
from torchmcl._utils.locks import exclusive_lock
from torchmcl.data.find import cache
from torchmcl.data.image_files import ImageFiles
from torchmcl.data.lazy import Lazy
from torchmcl.errors import UsageError, known_name
from torchmcl.serialization.model_files import checksum

VARIABLE = "TORCHMCL_CACHE_GB"
DEFAULT_GB = 20.0
KEY_BYTES = 16
ABOUT, LOCK = "about.json", ".lock"
STALE_SECONDS = 3600  # after which a draft belongs to a process that was killed

Keys = NDArray[np.uint8]  # (N, KEY_BYTES)


def features_folder() -> Path:
    """Return the folder of all stores."""
    return cache() / "features"


def max_bytes() -> float:
    """Return the maximum size of all stores together, which the environment variable TORCHMCL_CACHE_GB sets."""
    text = os.environ.get(VARIABLE) or str(DEFAULT_GB)
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = -1.0
    if not gigabytes >= 0:
        raise UsageError(f"Expected {VARIABLE} to be a number of gigabytes, got {text!r}.")
    return gigabytes * 1e9


def image_keys(images: Tensor | Lazy) -> Keys:
    """Return a hash of each image, (N, 16).

    >>> keys = image_keys(torch.tensor([[1, 2], [3, 4], [1, 2]], dtype=torch.uint8))
    >>> bool((keys[0] == keys[2]).all()), bool((keys[0] == keys[1]).all())
    (True, False)
    """
    contents: Iterator[Any]
    if isinstance(images, ImageFiles):
        contents = (Path(path).read_bytes() for path in images.paths)
    else:
        assert isinstance(images, Tensor)
        contents = iter(images.cpu().contiguous().numpy())
    digests = b"".join(blake2b(content, digest_size=KEY_BYTES).digest() for content in contents)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, KEY_BYTES)


@dataclass(frozen=True, eq=False)
class Segment:
    """One file of a store: features (N, …) float16, mapped into memory, and the keys of their images."""

    path: Path
    keys: Keys
    features: Tensor


class FeatureStore:
    """The features that one trunk computes, with one engine and one preprocessing.

    Args:
        about: plain values that determine the features; another value is another store
        root: the folder of all stores

    >>> import tempfile
    >>> store = FeatureStore({"trunk": "a"}, Path(tempfile.mkdtemp()))
    >>> keys = image_keys(torch.arange(6, dtype=torch.uint8).view(3, 2))
    >>> store.add(keys[:2], torch.ones(2, 4))
    >>> store.missing(keys).tolist(), store.get(keys[:2])[torch.tensor([1])]
    ([2], tensor([[1., 1., 1., 1.]], dtype=torch.float16))
    """

    def __init__(self, about: Mapping[str, Any], root: Path | None = None) -> None:
        self.root = features_folder() if root is None else root
        self.about = dict(about)
        self.text = json.dumps(self.about, sort_keys=True)
        self.folder = self.root / sha256(self.text.encode()).hexdigest()[:16]
        self.removed: dict[Path, str] = {}
        self._segments: dict[Path, Segment] = {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A context in which no other process adds features to the store or removes it to make room."""
        with ExitStack() as stack:
            held = False
            while not held:
                atomic.make_folder(self.folder)
                with suppress(FileNotFoundError):  # another process has just removed the folder
                    stack.enter_context(exclusive_lock(self.folder / LOCK))
                    held = True
            yield

    def refresh(self) -> None:
        """Read files that were added since the last call; remove unusable ones, with the reason in `removed`."""
        found = sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []
        self._segments = {path: segment for path, segment in self._segments.items() if path in found}
        for path in found:
            if path in self._segments:
                continue
            try:
                self._segments[path] = self._read(path)
            except FileNotFoundError:  # another process has removed it
                continue
            except ValueError as problem:
                path.unlink(missing_ok=True)
                self.removed[path] = str(problem)

    def missing(self, keys: Keys) -> NDArray[np.int64]:
        """Return the indices of the images without features; each image is listed once."""
        at, _ = self._find(keys)
        index = np.flatnonzero(at < 0)
        _, first = np.unique(_as_numbers(keys[index])[0], return_index=True)
        return index[np.sort(first)]

    def add(self, keys: Keys, features: Tensor) -> None:
        """Write the features (N, …) of new images to a file, rounded to float16."""
        from safetensors.torch import save

        atomic.make_folder(self.folder)
        if not (self.folder / ABOUT).is_file():
            atomic.write(self.folder / ABOUT, self.text + "\n")
        tensors = {"keys": torch.from_numpy(np.array(keys)), "features": features.half().contiguous()}
        metadata = {"torchmcl": json.dumps({"about": self.about, "sha256": checksum(self.about, tensors)})}
        atomic.write(self.folder / f"{uuid4().hex[:12]}.safetensors", save(tensors, metadata=metadata))
        self.refresh()

    def get(self, keys: Keys) -> "StoredFeatures":
        """Return the features of images that are all in the store; they are read on demand.

        Raises:
            KeyError: if an image has no features
        """
        at, row = self._find(keys)
        if (at < 0).any():
            raise KeyError("the features of an image are missing")
        segments = list(self._segments.values())
        for segment in segments:
            with suppress(OSError):  # another process has removed the file, whose content stays readable
                os.utime(segment.path)  # the time of the last use
        return StoredFeatures([segment.features for segment in segments], torch.from_numpy(at), torch.from_numpy(row))

    def _find(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the segment of each image, or -1 if it is in none, and its row in this segment."""
        counts = [len(segment.keys) for segment in self._segments.values()]
        at, row = np.full(len(keys), -1), np.zeros(len(keys), dtype=np.int64)
        if not sum(counts):
            return at, row
        known, check = _as_numbers(np.concatenate([segment.keys for segment in self._segments.values()]))
        order = np.argsort(known, kind="stable")
        wanted, expected = _as_numbers(keys)
        near = order[np.minimum(np.searchsorted(known[order], wanted), len(order) - 1)]
        found = (known[near] == wanted) & (check[near] == expected)
        ends = np.cumsum([0, *counts])
        segment = np.searchsorted(ends, near, side="right") - 1
        return np.where(found, segment, -1), np.where(found, near - ends[segment], 0)

    def _read(self, path: Path) -> Segment:
        """Read and verify a file; raise ValueError, with the reason, if it is damaged or belongs to another store."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                stored = json.loads((file.metadata() or {})["torchmcl"])
                tensors = {name: file.get_tensor(name) for name in ("keys", "features")}
            keys, features = tensors["keys"], tensors["features"]
            about = stored["about"]
            other = [name for name in {**self.about, **about} if self.about.get(name) != about.get(name)]
            valid = stored["sha256"] == checksum(about, tensors)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
            raise ValueError("are damaged") from problem
        if not valid:
            raise ValueError("are damaged")
        if other:
            raise ValueError(f"belong to other {' and '.join(other)}")
        return Segment(path, keys.numpy(), features)


@dataclass(frozen=True, eq=False)
class StoredFeatures(Lazy):
    """Features in a store, indexed by (B,) -> (B, …) float16."""

    segments: list[Tensor]
    at: Tensor
    row: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, (N, …)."""
        return (len(self.at), *self.segments[0].shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The data type, float16."""
        return torch.float16

    def read(self, index: Tensor, seeds: Tensor) -> Tensor:
        """Read the features at the indices, (B,) -> (B, …); `seeds` are not used."""
        result = torch.empty(len(index), *self.shape[1:], dtype=self.dtype)
        at, row = self.at[index], self.row[index]
        for number in at.unique().tolist():
            here = at == number
            result[here] = self.segments[number][row[here]]
        return result

    def subset(self, index: Tensor) -> "StoredFeatures":
        """Return the features at the indices (K,), in this order."""
        return StoredFeatures(self.segments, self.at[index], self.row[index])


def _as_numbers(keys: Keys) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    numbers = np.ascontiguousarray(keys).view(np.uint64)
    return numbers[:, 0], numbers[:, 1]


class StoreEntry(NamedTuple):
    """A store on disk: its folder, the values that determine its features, its size and the time of its last use."""

    folder: Path
    about: dict[str, Any]
    examples: int
    bytes: int
    used: float


def stores(root: Path | None = None) -> list[StoreEntry]:
    """List all stores, the last used first."""
    root = features_folder() if root is None else root
    return sorted((_entry(path) for path in root.glob("*") if path.is_dir()), key=lambda one: -one.used)


def _entry(folder: Path) -> StoreEntry:
    from safetensors import safe_open

    paths = list(folder.glob("*.safetensors"))
    examples = 0
    for path in paths:
        with suppress(Exception), safe_open(path, framework="pt") as file:  # a damaged file has no examples
            examples += file.get_slice("keys").get_shape()[0]
    try:
        about = json.loads((folder / ABOUT).read_text())
    except (OSError, ValueError):
        about = {}
    stats = []
    for path in (*paths, *filter(atomic.is_draft, folder.glob(".*"))):
        with suppress(FileNotFoundError):  # another process has removed it
            stats.append(path.stat())
    return StoreEntry(
        folder, about, examples, sum(one.st_size for one in stats), max((one.st_mtime for one in stats), default=0.0)
    )


def clear(names: Sequence[str] = (), root: Path | None = None) -> int:
    """Remove the stores with these names, or all, and return the number of bytes that were freed."""
    entries = stores(root)
    for name in names:
        known_name("store", name, [entry.folder.name for entry in entries])
    chosen = [entry for entry in entries if not names or entry.folder.name in names]
    for entry in chosen:
        rmtree(entry.folder, ignore_errors=True)
    return sum(entry.bytes for entry in chosen)


def make_room(needed: float, keep: Path, root: Path | None = None) -> bool:
    """Remove the stores that were not used for the longest time until `needed` bytes fit; return whether they fit.

    Neither the store `keep` nor a store that another process fills is removed. Drafts that killed processes have left
    are removed first.
    """
    root = features_folder() if root is None else root
    for draft in filter(atomic.is_draft, root.glob("*/.*")):
        with suppress(OSError):  # its process has renamed it
            if time.time() - draft.stat().st_mtime > STALE_SECONDS:
                draft.unlink()
    limit, entries = max_bytes(), stores(root)
    sizes = {entry.folder: entry.bytes for entry in entries}
    if sizes.get(keep, 0) + needed > limit:
        return False
    for entry in reversed(entries):
        if sum(sizes.values()) + needed <= limit:
            break
        if entry.folder != keep and _remove(entry.folder):
            del sizes[entry.folder]
    return sum(sizes.values()) + needed <= limit


def _remove(folder: Path) -> bool:
    """Remove a store unless another process fills it; return whether it was removed.

    The file of the lock alone means nothing: a process that was killed leaves it, without the lock.
    """
    try:
        with exclusive_lock(folder / LOCK, wait=False):
            rmtree(folder, ignore_errors=True)
    except UsageError:
        return False
    except FileNotFoundError:  # another process has removed it
        pass
    return True

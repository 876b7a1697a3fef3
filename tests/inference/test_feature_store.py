"""Features on disk: found by the image, verified when they are read, and bounded in size."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from torchmcl.data import ImageFiles
from torchmcl.errors import UsageError
from torchmcl.inference import feature_store
from torchmcl.inference.feature_store import FeatureStore, clear, image_keys, make_room, stores

IMAGES = torch.randint(0, 256, (12, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
ROWS = torch.arange(24.0).view(12, 2)
ABOUT = {"weights": "a", "engine": "torch 1"}


@pytest.fixture
def store(tmp_path):
    return FeatureStore(ABOUT, tmp_path)


def test_features_are_found_by_their_image(store, tmp_path):
    keys = image_keys(IMAGES)
    store.add(keys[:5], ROWS[:5])
    store.add(keys[7:], ROWS[7:])
    assert store.missing(keys).tolist() == [5, 6]
    order = torch.tensor([9, 0, 4, 11, 9])
    found = FeatureStore(ABOUT, tmp_path)
    found.refresh()
    chosen = found.get(keys[order])
    assert (chosen.shape, chosen.dtype, len(chosen)) == ((5, 2), torch.float16, 5)
    assert torch.equal(chosen[torch.arange(5)], ROWS[order].half())
    assert torch.equal(chosen.subset(torch.tensor([3, 1]))[torch.tensor([1, 0])], ROWS[[0, 11]].half())


def test_an_image_that_occurs_twice_is_computed_once(store):
    keys = image_keys(IMAGES[[0, 1, 0, 1, 2]])
    assert store.missing(keys).tolist() == [0, 1, 4]


def test_another_trunk_or_engine_has_features_of_its_own(store, tmp_path):
    keys = image_keys(IMAGES)
    store.add(keys, ROWS)
    other = FeatureStore({**ABOUT, "engine": "torch 2"}, tmp_path)
    other.refresh()
    assert len(other.missing(keys)) == len(keys)


def _bits(content: bytes) -> bytes:
    return content[:-3] + bytes([content[-3] ^ 4]) + content[-2:]


@pytest.mark.parametrize("change", [_bits, lambda content: content[:-9], lambda content: b"", lambda content: b"{}"])
def test_a_damaged_file_is_removed(store, tmp_path, change):
    keys = image_keys(IMAGES)
    store.add(keys[:6], ROWS[:6])
    store.add(keys[6:], ROWS[6:])
    path = sorted(store.folder.glob("*.safetensors"))[0]
    path.write_bytes(change(path.read_bytes()))
    fresh = FeatureStore(ABOUT, tmp_path)
    fresh.refresh()
    assert fresh.removed == {path: "are damaged"}
    assert not path.exists()
    assert len(fresh.missing(keys)) == 6


def test_a_file_of_other_weights_is_not_read(store, tmp_path):
    keys = image_keys(IMAGES)
    other = FeatureStore({**ABOUT, "weights": "b"}, tmp_path)
    other.add(keys, ROWS + 1)
    store.add(keys[:1], ROWS[:1])
    [path] = other.folder.glob("*.safetensors")
    path.rename(store.folder / path.name)
    fresh = FeatureStore(ABOUT, tmp_path)
    fresh.refresh()
    assert fresh.missing(keys).tolist() == list(range(1, 12))
    assert fresh.removed == {store.folder / path.name: "belong to other weights"}


def test_keys_of_files(tmp_path):
    from PIL import Image

    for name, color in (("a", 10), ("b", 200), ("c", 10)):
        Image.new("RGB", (4, 4), (color, 0, 0)).save(tmp_path / f"{name}.png")
    files = ImageFiles(tuple(str(tmp_path / f"{name}.png") for name in "abc"), (4, 4))
    keys = image_keys(files)
    assert np.array_equal(keys[0], keys[2])
    assert not np.array_equal(keys[0], keys[1])


def test_the_cache_is_bounded(tmp_path, monkeypatch):
    old, new = FeatureStore({"weights": "old"}, tmp_path), FeatureStore({"weights": "new"}, tmp_path)
    keys = image_keys(IMAGES)
    for store, seconds in ((old, 100), (new, 200)):
        store.add(keys, ROWS)
        for path in store.folder.glob("*.safetensors"):
            os.utime(path, (seconds, seconds))
    assert [entry.folder for entry in stores(tmp_path)] == [new.folder, old.folder]
    size = stores(tmp_path)[0].bytes
    monkeypatch.setenv(feature_store.VARIABLE, str(2.5 * size / 1e9))
    assert make_room(0.4 * size, new.folder, tmp_path)
    assert old.folder.exists()
    assert make_room(1.2 * size, new.folder, tmp_path)
    assert not old.folder.exists()
    assert new.folder.exists()
    assert not make_room(9 * size, new.folder, tmp_path)
    monkeypatch.setenv(feature_store.VARIABLE, "plenty")
    with pytest.raises(UsageError, match="TORCHMCL_CACHE_GB to be a number of gigabytes, got 'plenty'"):
        make_room(1, new.folder, tmp_path)


FILLS = """
import os, signal, sys
from pathlib import Path
from torchmcl.inference.feature_store import FeatureStore
store = FeatureStore({"weights": "old"}, Path(sys.argv[1]))
with store.locked():
    (store.folder / ".a.safetensors.0a1b2c3d").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_leaves(tmp_path, monkeypatch):
    """The lock file of a killed process protects nothing; its draft counts, and is removed when it is stale."""
    done = subprocess.run([sys.executable, "-c", FILLS, str(tmp_path)], env=os.environ)
    assert done.returncode == -signal.SIGKILL
    old, keep = FeatureStore({"weights": "old"}, tmp_path), tmp_path / "new"
    draft = old.folder / ".a.safetensors.0a1b2c3d"
    assert (old.folder / feature_store.LOCK).exists()
    assert [entry.bytes for entry in stores(tmp_path)] == [1000]
    monkeypatch.setenv(feature_store.VARIABLE, "2e-6")
    assert make_room(900, keep, tmp_path)
    assert draft.exists()
    assert make_room(1500, keep, tmp_path)
    assert not old.folder.exists()
    with old.locked():
        draft.write_bytes(bytes(1000))
        assert not make_room(1500, keep, tmp_path)
        os.utime(draft, (0, 0))
        assert make_room(1500, keep, tmp_path)
    assert not draft.exists()


def test_a_store_that_is_removed_while_another_process_waits(store, tmp_path):
    """The process that waits for the lock creates the folder again."""

    def fill():
        started.set()
        with store.locked():
            store.add(image_keys(IMAGES), ROWS)

    started, waits = threading.Event(), threading.Thread(target=fill)
    with FeatureStore(ABOUT, tmp_path).locked():
        waits.start()
        started.wait()
        time.sleep(0.2)  # so that the thread waits for the lock
        shutil.rmtree(store.folder)
    waits.join()
    assert [entry.examples for entry in stores(tmp_path)] == [12]


def test_clear(store, tmp_path):
    store.add(image_keys(IMAGES), ROWS)
    other = FeatureStore({"weights": "b"}, tmp_path)
    other.add(image_keys(IMAGES), ROWS)
    with pytest.raises(UsageError, match="Unknown store 'nothing'"):
        clear(["nothing"], tmp_path)
    assert [entry.examples for entry in stores(tmp_path)] == [12, 12]
    assert clear([other.folder.name], tmp_path) > 0
    assert [entry.folder for entry in stores(tmp_path)] == [store.folder]
    clear(root=tmp_path)
    assert stores(tmp_path) == []


def test_missing_features_are_never_replaced(store):
    keys = image_keys(IMAGES)
    store.add(keys[:5], ROWS[:5])
    with pytest.raises(KeyError, match="missing"):
        store.get(keys)


def test_files_that_another_process_removes(store, tmp_path):
    keys = image_keys(IMAGES)
    store.add(keys[:6], ROWS[:6])
    found = store.get(keys[:6])
    clear(root=tmp_path)
    assert torch.equal(found[torch.arange(6)], ROWS[:6].half())  # the content stays readable
    assert store.get(keys[:6]).shape == (6, 2)
    store.add(keys[6:], ROWS[6:])
    assert store.missing(keys).tolist() == list(range(6))


def test_what_never_fits_removes_nothing(tmp_path, monkeypatch):
    old = FeatureStore({"weights": "old"}, tmp_path)
    old.add(image_keys(IMAGES), ROWS)
    monkeypatch.setenv(feature_store.VARIABLE, str(2 * stores(tmp_path)[0].bytes / 1e9))
    assert not make_room(1e6, tmp_path / "new", tmp_path)
    assert old.folder.exists()
    with old.locked():  # a store that is being filled
        assert not make_room(1.5 * stores(tmp_path)[0].bytes, tmp_path / "new", tmp_path)
    assert old.folder.exists()

"""Each exception is raised in its situation, can be told from the others, and survives the way between processes."""

import copy
import errno
import json
import os
import pickle
import shutil
import socket
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from breaking import CONTEXT, NO_MOUNT, Child, lost_process, on_a_full_disk, raise_again
from outcomes import one_clear_line
from torchmcl._utils import atomic, distributed, plain_yaml
from torchmcl.cli import entry
from torchmcl.data import find
from torchmcl.data.download import RemoteFile, obtain
from torchmcl.data.examples import Examples
from torchmcl.data.image_files import ImageFiles
from torchmcl.data.loader import Loader
from torchmcl.errors import DamagedFileError, DiskFullError, DivergedError, LostProcessError, TorchmclError, UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import checkpoint, hub, model_files
from torchmcl.studies import store
from torchmcl.studies.execute import execute
from torchmcl.studies.spec import Spec
from torchmcl.training import fit
from torchmcl.training.run_folder import ASSIGNMENT_HISTORY, read_assignment_history

CLASSES = (UsageError, DamagedFileError, DivergedError, LostProcessError, DiskFullError)
BUILT_IN = {
    UsageError: ValueError,
    DamagedFileError: ValueError,
    DivergedError: ArithmeticError,
    LostProcessError: RuntimeError,
    DiskFullError: OSError,
}
OPTIONS = {"method": "amcl", "network": "mlp", "data": "digits", "data_limit": 100, "width": 4, "members": 2}
OPTIONS |= {"epochs": 1, "batch_size": 64}


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_is_caught_by_its_own_name_its_built_in_and_the_base(kind):
    assert issubclass(kind, TorchmclError)
    assert [each for each in dict.fromkeys(BUILT_IN.values()) if issubclass(kind, each)] == [BUILT_IN[kind]]
    others = [each for each in CLASSES if each is not kind and issubclass(kind, each)]
    assert others == ([UsageError] if kind is DamagedFileError else [])


@pytest.mark.parametrize("kind", [TorchmclError, *CLASSES])
def test_the_message_is_one_printable_line(kind):
    error = kind("Expected a,\n got\t\x1b[31m" + "b" * 5000)
    assert str(error).startswith(r"Expected a, got \x1b[31mbbb")
    assert str(error).isprintable()
    assert len(str(error)) == 1000


def copies(error):
    yield copy.copy(error)
    yield copy.deepcopy(error)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(error, protocol))


@pytest.mark.parametrize("kind", [TorchmclError, *CLASSES])
def test_copies_are_equal(kind):
    error = kind("Expected a file,\n got none.")
    error.add_note("of epoch 3")
    for again in copies(error):
        assert type(again) is kind
        assert str(again) == "Expected a file, got none."
        assert again.args == error.args
        assert again.__notes__ == ["of epoch 3"]


def test_copies_of_a_full_disk_know_where():
    error = DiskFullError("Expected free space.", errno.EDQUOT, "/a/b")
    for again in copies(error):
        assert (again.errno, again.filename, again.strerror) == (errno.EDQUOT, "/a/b", os.strerror(errno.EDQUOT))
        assert str(again) == "Expected free space."


def test_each_crosses_processes():
    with CONTEXT.Pool(1) as pool:
        for kind in CLASSES:
            with pytest.raises(kind, match=r"^Expected a, got b\.$") as caught:
                pool.apply(raise_again, (kind("Expected a,\n got b."),))
            assert type(caught.value) is kind


def truncated(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@contextmanager
def only(kind):
    """Raised as this class exactly, in one clear line."""
    with pytest.raises(kind) as caught:
        yield caught
    assert type(caught.value) is kind
    one_clear_line(str(caught.value))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    fit(**OPTIONS, out=folder, verbose=False)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def test_a_damaged_checkpoint(run):
    path = run / "checkpoints" / "last.pt"
    truncated(path)
    with only(DamagedFileError):
        checkpoint.read(path)
    (run / "metrics.json").unlink()
    with only(DamagedFileError):
        fit(**OPTIONS, out=run, resume=True, verbose=False)


def test_a_checkpoint_that_is_whole_is_not_called_damaged(tmp_path):
    """A caller may remove what is damaged."""
    for problem in (
        UsageError("it was begun with seed 1"),
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
    ):
        assert type(checkpoint.load_error(tmp_path, problem)) is UsageError
    for problem in (ValueError("cut"), EOFError(), OSError("not a zip"), OSError(errno.EINVAL, "Invalid argument")):
        assert type(checkpoint.load_error(tmp_path, problem)) is DamagedFileError


def test_a_damaged_model(run):
    truncated(run / "model.safetensors")
    with only(DamagedFileError):
        Specialists.load(run)


def test_a_model_that_is_not_there(tmp_path):
    with only(UsageError):
        Specialists.load(tmp_path)


def test_a_model_with_a_bit_flipped(run):
    content = bytearray((run / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "model.safetensors").write_bytes(content)
    with only(DamagedFileError):
        Specialists.load(run)


def test_a_configuration_of_another_model(run):
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("members: 2", "members: 3"))
    with only(DamagedFileError):
        Specialists.load(run)


def test_a_model_saved_into_another_s_run_is_a_mistake_of_the_caller(trained, run):
    specialists = Specialists.load(trained)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("network: mlp", "network: resnet10"))
    with only(UsageError):
        specialists.save(run)


def test_a_damaged_configuration(run):
    (run / "config.yaml").write_text("members: [2")
    with only(DamagedFileError):
        plain_yaml.read(run / "config.yaml")
    with only(DamagedFileError):
        model_files.training_config(run)


def test_damaged_figures(run):
    for damage in (truncated, lambda path: path.write_bytes(b"")):
        damage(run / "metrics.json")
        with only(DamagedFileError):
            hub.read_metrics(run)


def test_a_damaged_flow(run):
    truncated(run / ASSIGNMENT_HISTORY)
    with only(DamagedFileError):
        read_assignment_history(run)


def test_a_damaged_result(tmp_path):
    spec = Spec(OPTIONS)
    path = store.Store(tmp_path / "results").write("study", "smoke", spec, execute(spec, tmp_path / "work"))
    result = json.loads(path.read_text())
    path.write_text(json.dumps({**result, "share": [1.0, 0.0]}))
    with only(DamagedFileError):
        store.read(path)
    truncated(path)
    with only(DamagedFileError):
        store.Store(tmp_path / "results").read("study", "smoke")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_whoever_reads_it(workers, tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(path)
    truncated(path)
    images = ImageFiles((str(path),), size=(8, 8))
    loader = Loader(Examples(images, torch.tensor([0]), ("a", "b")), batch_size=1, shuffle=False, workers=workers)
    with only(DamagedFileError):
        list(loader)


def test_a_diverged_training():
    with only(DivergedError):
        fit(**{**OPTIONS, "epochs": 9}, learning_rate=1e18, schedule="constant", verbose=False)


def test_a_run_resumed_with_other_options_is_a_mistake_of_the_caller(run):
    (run / "metrics.json").unlink()
    with only(UsageError):
        fit(**OPTIONS, seed=1, out=run, resume=True, verbose=False)


@pytest.mark.parametrize("kind", CLASSES)
def test_the_command_line_says_its_line_and_no_more(kind):
    assert entry.explained(kind("Expected a, got b.")) == "Expected a, got b."


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_while_a_file_is_written(number, tmp_path, monkeypatch):
    path = tmp_path / "note.txt"
    path.write_text("of before")

    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.os, "fsync", full)
    with only(DiskFullError) as caught:
        atomic.write(path, "of now")
    assert f"{str(path)!r}: {os.strerror(number)}." in str(caught.value)
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert path.read_text() == "of before"
    assert list(tmp_path.iterdir()) == [path]


def test_other_problems_of_a_disk_are_the_system_s_own(tmp_path, monkeypatch):
    def too_large(descriptor):
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(atomic.os, "fsync", too_large)
    with pytest.raises(OSError, match="File too large") as caught:
        atomic.write(tmp_path / "note.txt", "text")
    assert not isinstance(caught.value, TorchmclError)


def test_a_disk_that_is_really_full(tmp_path):
    child = Child(on_a_full_disk, tmp_path)
    if child.end() == NO_MOUNT:
        pytest.skip("this system lets nobody mount a small disk")
    assert child.end() == 0, child.said
    lines = child.said.splitlines()
    assert len(lines) == 4  # text, a checkpoint, an array, a folder
    assert all(line.startswith("DiskFullError: Cannot write '") for line in lines), lines


def test_a_full_disk_while_data_is_downloaded(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pooch.retrieve", full)
    monkeypatch.setenv(find.VARIABLE, str(tmp_path))
    monkeypatch.setattr("torchmcl.data.download.cache", lambda: tmp_path)
    monkeypatch.setattr("torchmcl.data.download.SOURCES", {"set": RemoteFile("https://a.org/set.zip", "0", 10)})
    with only(DiskFullError):
        obtain(["set"])


def test_a_full_disk_while_a_model_is_fetched(monkeypatch):
    class Library:
        @staticmethod
        def snapshot_download(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hub, "_library", Library)
    with only(DiskFullError):
        hub.fetch("me/pets")


def test_a_lost_process():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = [Child(lost_process, rank, port) for rank in range(2)]
    assert [child.end() for child in both] == [0, 0], [child.said for child in both]
    (line,) = (line for line in both[0].said.splitlines() if line.startswith("LostProcessError: "))
    assert line.count("lost contact with another process") == 1
    assert line.endswith("Start them again.")


def test_other_errors_among_processes_pass():
    for error in (RuntimeError("gloo"), DivergedError("The loss is nan, says gloo.")):
        with pytest.raises(type(error)) as caught, distributed.report_lost_process("Start them again."):
            raise error
        assert caught.value is error

"""Disks that are full or read-only, folders that go or turn into something else: one line, and nothing is lost."""

import shlex
import shutil
import time

import pytest

from breaking import (
    NO_MOUNT,
    Child,
    command,
    command_with_limit,
    on_a_disk_that_turns_read_only,
    on_a_small_disk,
)
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import checkpoint

pytestmark = pytest.mark.slow

ARGUMENTS = shlex.split(
    "--method amcl --network mlp --width 8 --warmup 2 --epochs 4 --checkpoint-steps 3 --data digits --data.limit 300 "
    "--members 2 --batch-size 64 --quiet"
)
FREE = (0, 4_096, 20_000, 60_000, 105_000)  # nothing, only config.yaml, not a checkpoint, not a second one
LIMITS = (700, 10_000)  # less than config.yaml, less than a checkpoint
FILES = ("config.yaml", "model.safetensors", "metrics.json", "log.csv")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    child = Child(command, "train", *ARGUMENTS, "--out", run)
    assert child.end() == 0, child.said
    return {name: (run / name).read_bytes() for name in FILES}


def files(run):
    return {name: (run / name).read_bytes() for name in FILES}


def one_line(said):
    assert "Traceback" not in said
    assert "report it" not in said
    errors = [line for line in said.splitlines() if line.startswith("torchmcl: ")]
    assert len(errors) == 1, said
    return errors[0]


@pytest.mark.parametrize("free", FREE)
def test_a_full_disk(free, whole, tmp_path, tally):
    (tmp_path / "disk").mkdir()
    child = Child(on_a_small_disk, tmp_path / "disk", free, tmp_path / "kept", *ARGUMENTS)
    if child.end() == NO_MOUNT:
        pytest.skip("this system lets nobody mount a small disk")
    assert child.end() == 0, child.said
    assert "': No space left on device." in one_line(child.said)
    assert files(tmp_path / "kept") == whole
    tally("disk full in a training", 1, "one clear error; with room again goes on, equal to the bit")


def test_a_disk_that_turns_read_only(whole, tmp_path, tally):
    (tmp_path / "disk").mkdir()
    child = Child(on_a_disk_that_turns_read_only, tmp_path / "disk", tmp_path / "kept", *ARGUMENTS)
    if child.end() == NO_MOUNT:
        pytest.skip("this system lets nobody mount a small disk")
    assert child.end() == 0, child.said
    assert "permission denied" in one_line(child.said)
    assert files(tmp_path / "kept") == whole
    tally("disk read-only", 1, "one clear error; writable again goes on, equal to the bit")


@pytest.mark.parametrize("most", LIMITS)
def test_files_that_may_not_grow(most, whole, tmp_path, tally):
    run = tmp_path / "run"
    child = Child(command_with_limit, most, "train", *ARGUMENTS, "--out", run)
    assert child.end() == 2, child.said
    assert "': File too large." in one_line(child.said)
    assert not list(run.rglob(".*"))
    again = ["--resume", run] if (run / "config.yaml").exists() else [*ARGUMENTS, "--out", run]
    child = Child(command, "train", *again)
    assert child.end() == 0, child.said
    assert files(run) == whole
    tally("limit on the size of files in a training", 1, "one clear error; without it goes on, equal to the bit")


def test_a_study_and_an_export_without_room(tmp_path, tally):
    study = [
        "study",
        "run",
        "confidence",
        "--workers",
        "0",
        "--results",
        tmp_path / "results",
        "--work",
        tmp_path / "w",
    ]
    child = Child(command_with_limit, 10_000, *study)
    assert child.end() == 2, child.said
    one_line(child.said)
    assert not list((tmp_path / "results").rglob("*.json"))
    child = Child(command, *study)
    assert child.end() == 0, child.said
    assert len(list((tmp_path / "results").rglob("*.json"))) == 2
    run, path = next(path.parent for path in (tmp_path / "w").glob("*/metrics.json")), tmp_path / "model.pt2"
    path.write_bytes(b"of before")
    child = Child(command_with_limit, 1_000, "export", run, path)
    assert child.end() == 2, child.said
    one_line(child.said)
    assert path.read_bytes() == b"of before"
    tally("limit on the size of files in a study and an export", 2, "one clear error; what was there stays")


def under_way(run, *more):
    """A long training that has written its first checkpoint."""
    child = Child(command, "train", *ARGUMENTS, "--epochs", "4000", *more, "--out", run)
    while not (run / "checkpoints" / "last.pt").exists():
        assert child.process.is_alive(), child.said
        time.sleep(0.01)
    return child


def removed(run):
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)


def moved(run):
    run.rename(run.with_name("elsewhere"))


def replaced_by_a_file(run):
    moved(run)
    run.write_text("mine")


def checkpoints_replaced_by_a_file(run):
    while not (run / "checkpoints").is_file():
        shutil.rmtree(run / "checkpoints", ignore_errors=True)
        try:
            (run / "checkpoints").write_text("mine")
        except IsADirectoryError:
            continue


def replaced_by_another_s_folder(run):
    moved(run)
    run.mkdir()
    (run / "note.txt").write_text("mine")


@pytest.mark.parametrize(
    "fate", [removed, moved, replaced_by_a_file, checkpoints_replaced_by_a_file, replaced_by_another_s_folder]
)
def test_a_folder_that_goes_in_the_middle(fate, tmp_path, tally):
    run = tmp_path / "run"
    child = under_way(run)
    fate(run)
    assert child.end(within=60) == 2, child.said
    one_line(child.said)
    if fate is removed or fate is moved:
        assert not run.exists(), "half a run has come back"
    if fate is replaced_by_a_file:
        assert run.read_text() == "mine"
    if fate is replaced_by_another_s_folder:
        assert [path.name for path in run.iterdir()] == ["note.txt"]
    if fate in (moved, replaced_by_a_file, replaced_by_another_s_folder):
        checkpoint.read(tmp_path / "elsewhere" / "checkpoints" / "last.pt")
    tally("folder of a run removed, moved or replaced in a training", 1, "one clear error")


def test_a_place_that_is_none(tmp_path, tally):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", "/proc/none/run"):
        child = Child(command, "train", *ARGUMENTS, "--out", out)
        assert child.end() == 2, child.said
        one_line(child.said)
    assert (tmp_path / "file").read_text() == "mine"
    tally("folder that cannot be made", 3, "one clear error")


def test_a_moved_run_goes_on_elsewhere(whole, tmp_path):
    from breaking import command_killed_at_write

    child = Child(command_killed_at_write, 9, "before", "train", *ARGUMENTS, "--out", tmp_path / "run")
    assert child.end() == -9
    moved(tmp_path / "run")
    child = Child(command, "train", "--resume", tmp_path / "elsewhere")
    assert child.end() == 0, child.said
    assert files(tmp_path / "elsewhere") == whole
    assert Specialists.load(tmp_path / "elsewhere").classes

"""Processes that meet: two that want one run, two that train together and lose each other."""

import os
import shlex
import signal
import socket
import time

import pytest

from breaking import Child, command, command_in_company, hold_and_fork, killed_at_write, trained_on_files
from torchmcl import UsageError
from torchmcl._utils.locks import exclusive_lock

pytestmark = pytest.mark.slow

ARGUMENTS = shlex.split(
    "--method amcl --network mlp --width 8 --warmup 2 --epochs 6 --checkpoint-steps 3 --data digits --data.limit 300 "
    "--members 2 --batch-size 64 --quiet"
)
FILES = ("config.yaml", "model.safetensors", "metrics.json", "log.csv")


def files(run):
    return {name: (run / name).read_bytes() for name in FILES}


def under_way(child, run):
    while not (run / "checkpoints" / "last.pt").exists():
        assert child.process.is_alive(), child.said
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    child = Child(command, "train", *ARGUMENTS, "--out", run)
    assert child.end() == 0, child.said
    return files(run)


@pytest.mark.parametrize("first_is", ["let go on", "killed"])
def test_a_second_process_is_refused(first_is, whole, tmp_path, tally):
    run = tmp_path / "run"
    first = Child(command, "train", *ARGUMENTS, "--out", run)
    under_way(first, run)
    os.kill(first.process.pid, signal.SIGSTOP)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for second in (["--resume", run], [*ARGUMENTS, "--overwrite", "--out", run]):
        child = Child(command, "train", *second)
        (line,) = child.errors()
        assert f"in use by process {first.process.pid}" in line
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    if first_is == "killed":
        assert first.kill()
        child = Child(command, "train", "--resume", run)  # at once
        assert child.end() == 0, child.said
    else:
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.end() == 0, first.said
    assert files(run) == whole
    assert not list(run.rglob(".*"))
    tally("second process into the same run", 2, "one clear error; the first is not disturbed")


def test_a_killed_run_is_free_at_once_though_its_readers_live_on(tmp_path, tally):
    child = Child(trained_on_files, tmp_path / "alone", tmp_path / "images", 0)
    assert child.end() == 0, child.said
    run = tmp_path / "run"
    child = Child(killed_at_write, 7, "after", trained_on_files, run, tmp_path / "images", 2)
    assert child.end() == -signal.SIGKILL, child.said
    assert (run / "checkpoints" / "last.pt").exists()
    child = Child(command, "train", "--resume", run, "--quiet")
    assert child.end() == 0, child.said
    # The same weights, whoever reads the images, killed or not.
    assert files(run) | {"config.yaml": b""} == files(tmp_path / "alone") | {"config.yaml": b""}
    tally("SIGKILL of a training whose images others read", 1, "goes on at once, equal to the bit")


def test_a_lock_is_not_inherited_by_a_fork(tmp_path):
    holder = Child(hold_and_fork, tmp_path / ".lock", tmp_path / "forked")
    while not (tmp_path / "forked").exists():
        assert holder.process.is_alive(), holder.said
        time.sleep(0.01)
    with (
        pytest.raises(UsageError, match=f"in use by process {holder.process.pid}"),
        exclusive_lock(tmp_path / ".lock", wait=False),
    ):
        pass
    assert holder.kill()
    forked = int((tmp_path / "forked").read_text())
    try:
        with exclusive_lock(tmp_path / ".lock", wait=False):
            os.kill(forked, 0)  # it is there, and holds nothing
    finally:
        os.kill(forked, signal.SIGKILL)


def test_two_studies_in_one_place(tmp_path, tally):
    """Whoever comes second waits for a run, and finds it done."""
    line = ["study", "run", "confidence", "--workers", "0", "--results", tmp_path / "results", "--work", tmp_path / "w"]
    both = [Child(command, *line) for _ in range(2)]
    for child in both:
        assert child.end() == 0, child.said
    assert len(list((tmp_path / "results").rglob("*.json"))) == 2
    assert not list((tmp_path / "w").glob("*.lock"))
    tally("second study into the same folders", 1, "waits, both right")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pair(*arguments):
    port = free_port()
    return [Child(command_in_company, rank, port, "train", *arguments) for rank in range(2)]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    run = tmp_path_factory.mktemp("together") / "run"
    for child in pair(*ARGUMENTS, "--out", run):
        assert child.end() == 0, child.said
    return files(run)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_lost_among_two_that_train_together(lost, together, tmp_path, tally):
    run = tmp_path / "run"
    both = pair(*ARGUMENTS, "--out", run)
    under_way(both[0], run)
    assert both[lost].kill()
    (line,) = both[1 - lost].errors()
    assert "lost contact with another process" in line
    assert f"torchmcl train --resume {run}" in line
    for child in pair("--resume", run):
        assert child.end() == 0, child.said
    assert files(run) == together
    tally("process lost out of two that train together", 1, "one clear error; both go on, equal to the bit")

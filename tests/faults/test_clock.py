"""A wall clock that jumps, files from the past and the future: nothing is on the clock."""

import os
import shlex

import pytest

from breaking import Child, command, command_killed_at_write, command_with_clock

pytestmark = pytest.mark.slow

ARGUMENTS = shlex.split(
    "--method amcl --network mlp --width 8 --warmup 2 --epochs 3 --checkpoint-steps 3 --data digits --data.limit 300 "
    "--members 2 --batch-size 64 --quiet"
)
FILES = ("config.yaml", "model.safetensors", "metrics.json", "log.csv")
YEARS = {"forth": (0, 10, 20, 30), "back": (0, -10, -20, -30), "both": (30, -30)}


def files(run):
    return {name: (run / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    child = Child(command, "train", *ARGUMENTS, "--out", run)
    assert child.end() == 0, child.said
    return files(run)


@pytest.mark.parametrize("jumps", YEARS)
def test_a_clock_that_jumps(jumps, whole, tmp_path, tally):
    child = Child(command_with_clock, YEARS[jumps], "train", *ARGUMENTS, "--out", tmp_path / "run")
    assert child.end() == 0, child.said
    assert files(tmp_path / "run") == whole
    tally("clock that jumps by years in a training", 1, "equal to the bit")


@pytest.mark.parametrize("moment", [0, 2**32], ids=["1970", "2106"])
def test_files_of_another_time(moment, whole, tmp_path, tally):
    run = tmp_path / "run"
    child = Child(command_killed_at_write, 7, "before", "train", *ARGUMENTS, "--out", run)
    assert child.end() == -9
    for path in (run, *run.rglob("*")):
        os.utime(path, (moment, moment))
    child = Child(command, "train", "--resume", run)
    assert child.end() == 0, child.said
    assert files(run) == whole
    tally("files of a run dated 1970 or 2106, then resumed", 1, "goes on, equal to the bit")

"""A real training process, killed without warning, continued, and compared to the bit with one that never was."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

from equality import same

COMMAND = [sys.executable, "-m", "torchmcl", "train"]
ARGUMENTS = shlex.split(
    "--method amcl --network simple_cnn --data digits --members 2 --epochs 6 --warmup 2 --width 8 --batch-size 32 "
    "--checkpoint-steps 7"
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*arguments):
    return subprocess.Popen(
        [*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def checkpoint(run):
    path = run / "checkpoints" / "last.pt"
    return torch.load(path, weights_only=True) if path.exists() else None


def wait_for_progress(process, run, epoch, batch):
    """Until a checkpoint at or past that place is there; the process may be anywhere after it."""
    while process.poll() is None:
        state = checkpoint(run)
        if state is not None and (state["at"]["epoch"], state["at"]["batch"]) >= (epoch, batch):
            return
        time.sleep(0.02)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    process = start(*ARGUMENTS, "--out", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return run


def test_sigkill_three_times(whole, tmp_path):
    run, chance = tmp_path / "run", random.Random(0)
    process = start(*ARGUMENTS, "--out", str(run))
    places = []
    for epoch, batch in ((1, 7), (3, 14), (5, 0)):  # before and after the memory is fixed, within and between epochs
        wait_for_progress(process, run, epoch, batch)
        time.sleep(chance.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        at = checkpoint(run)["at"]
        places.append((at["epoch"], at["batch"]))
        assert not (run / "metrics.json").exists()
        (run / "checkpoints" / ".last.pt.0123abcd").write_bytes(b"half")  # as if killed while it wrote
        process = start("--resume", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert any(batch for _, batch in places), "none of the kills fell into an epoch"
    assert same(checkpoint(whole), checkpoint(run))
    for name in ("model.safetensors", "metrics.json", "log.csv"):
        assert (whole / name).read_bytes() == (run / name).read_bytes()
    assert not list(run.rglob(".*"))  # no drafts left behind, wherever it was killed


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_polite_signal_saves_first(number, whole, tmp_path):
    run = tmp_path / "run"
    process = start(*ARGUMENTS, "--out", str(run), "--checkpoint-steps", "100000")
    wait_for_progress(process, run, 2, 0)
    process.send_signal(number)
    output = process.communicate()[0]
    assert process.returncode == 128 + number, output
    assert f"torchmcl train --resume {run}" in output
    assert "Traceback" not in output
    process = start("--resume", str(run))
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert json.loads((run / "metrics.json").read_text()) == json.loads((whole / "metrics.json").read_text())
    assert same(checkpoint(whole)["ensemble"], checkpoint(run)["ensemble"])

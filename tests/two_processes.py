"""A training script that gives the same run in one process and in two."""

import csv
import json
import os
import subprocess
import sys

import pytest


def check_two_processes(script, folder, *words):
    """Run a script, given as text, with the words OUT, its number of processes and `words`, and compare the runs."""
    (path := folder / "train.py").write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    found = []
    for processes in (1, 2):
        command = [sys.executable, str(path), str(out := folder / str(processes)), str(processes), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = csv.DictReader((out / "log.csv").read_text().splitlines())
        metrics = json.loads((out / "metrics.json").read_text())
        found.append(([float(row["loss"]) for row in rows], metrics["flags"], metrics["top1_error"]))
    (losses, flags, error), (losses_of_two, flags_of_two, error_of_two) = found
    assert losses_of_two == pytest.approx(losses, abs=1e-5)
    assert flags_of_two == flags
    assert error_of_two == pytest.approx(error, abs=0.5)

"""Several processes that train together do what one does: same global batches, same loss, same flags."""

import csv
import json
import os
import shlex
import socket
import subprocess
import sys

import pytest

ARGUMENTS = shlex.split(
    "train --method amcl --network mlp --data digits --members 3 --epochs 5 --warmup 2 --width 32 --accelerator cpu "
    "--learning-rate 0.05 --exchange none"
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_all(*commands):
    processes = [
        subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    outputs = [process.communicate(timeout=240)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)


def torchrun(*options):
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m", "torchmcl", *ARGUMENTS]


def results(run):
    rows = list(csv.DictReader((run / "log.csv").read_text().splitlines()))
    return [float(row["loss"]) for row in rows], json.loads((run / "metrics.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    run = tmp_path_factory.mktemp("alone") / "run"
    run_all([sys.executable, "-m", "torchmcl", *ARGUMENTS, "--out", str(run)])
    return results(run)


def check(alone, together):
    assert together[0] == pytest.approx(alone[0], abs=1e-5)
    for exactly in ("counts", "flags", "assigned", "examples"):
        assert together[1][exactly] == alone[1][exactly]
    for nearly in ("oracle_error", "top1_error", "members", "share"):
        assert together[1][nearly] == pytest.approx(alone[1][nearly], abs=0.6)


@pytest.mark.slow
def test_two_processes_by_torchrun(alone, tmp_path):
    run = tmp_path / "run"
    command = torchrun("--nproc_per_node=2", f"--master_port={free_port()}")
    run_all([*command, "--devices", "2", "--strategy", "ddp", "--out", str(run)])
    check(alone, results(run))


def test_two_processes_that_it_starts_itself(alone, tmp_path):
    run = tmp_path / "run"
    run_all([sys.executable, "-m", "torchmcl", *ARGUMENTS, "--devices", "2", "--strategy", "ddp", "--out", str(run)])
    check(alone, results(run))


@pytest.mark.slow
def test_two_nodes_on_loopback(alone, tmp_path):
    run, port = tmp_path / "run", free_port()
    nodes = [
        torchrun(
            "--nnodes=2",
            f"--node_rank={node}",
            "--nproc_per_node=1",
            "--master_addr=127.0.0.1",
            f"--master_port={port}",
        )
        for node in range(2)
    ]
    run_all(*([*node, "--num-nodes", "2", "--devices", "1", "--out", str(run)] for node in nodes))
    check(alone, results(run))

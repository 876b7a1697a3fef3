"""A study on a real Ray cluster of two nodes: a worker is killed, the driver is stopped, every result is the same."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

import pytest

from own_parts import write_parts
from torchmcl import cli
from torchmcl.studies import scales
from torchmcl.studies.execute import execute
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Store

EPOCHS = 30  # long enough for a signal to find a training under way
SMALL = {"method": "amcl", "network": "mlp", "data": "digits", "data_limit": 120, "width": 8, "members": 2}
SMALL |= {"epochs": 3, "warmup": 2, "k": 1, "batch_size": 32, "seed": 1}

# Two nodes of one CPU each, until standard input closes.
NODES = """
import json, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **json.loads(sys.argv[1])})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from torchmcl import cli
from torchmcl.studies import scales
scales.SETTINGS["smoke"]["confidence"]["epochs"] = int(sys.argv[1])
sys.exit(cli.main(sys.argv[2:]))
"""
EVENTS = """
import json, sys
from pathlib import Path
from torchmcl.studies.cluster import cluster
from torchmcl.studies.spec import Spec
with cluster(sys.argv[1], cpus=0.5) as runner:
    for event in runner([Spec(options) for options in json.loads(sys.argv[2])], Path(sys.argv[3])):
        print(json.dumps([event.spec.hash, event.status, event.result, event.reason]), flush=True)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def nodes():
    """The environment of the cluster's users, and the address for clients."""
    folder, port = tempfile.mkdtemp(prefix="ray", dir="/tmp"), free_port()  # short: it holds sockets
    quiet = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder}
    # See docs/cluster.md; and 30 seconds are few on a busy machine.
    quiet |= {"GRPC_ENABLE_FORK_SUPPORT": "0", "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120"}
    head = {"include_dashboard": False, "ray_client_server_port": port}
    process = subprocess.Popen(
        [sys.executable, "-c", NODES, json.dumps(head)],
        env={**os.environ, **quiet},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    address = process.stdout.readline().strip()
    assert address, process.communicate()[1]
    yield {**os.environ, **quiet, "RAY_ADDRESS": address}, f"ray://127.0.0.1:{port}"
    process.communicate("")
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def driver(folder, environment):
    """A real `study run`, ended in any case."""
    line = ["study", "run", "confidence", "--on", "auto", "--results", str(folder / "results")]
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", DRIVER, str(EPOCHS), *line, "--work", str(folder / "work")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(found, process):
    """What is found in the end, while a process runs."""
    while process.poll() is None:
        if value := found():
            return value
        time.sleep(0.02)
    return pytest.fail(f"it ended before: {process.communicate()[0]}")


def trained(folder):
    """The runs under way, by the epochs they have behind them."""
    logs = {log.parent.name: len(log.read_text().splitlines()) - 1 for log in folder.glob("work/*/log.csv")}
    return {name: count for name, count in logs.items() if not (folder / "work" / name / "metrics.json").exists()}


def at_work(name=""):
    """The process id of a worker that is at a run."""
    listed = subprocess.run(["ps", "-axo", "pid=,command="], capture_output=True, text=True, check=True).stdout
    return next((int(line.split()[0]) for line in listed.splitlines() if f"ray::torchmcl {name}" in line), None)


def plain(result):
    return {name: value for name, value in result.items() if name not in ("trained", "study", "scale", "format")}


@pytest.mark.slow
def test_a_stopped_driver_and_a_killed_worker_change_no_result(nodes, tmp_path, monkeypatch):
    environment, _ = nodes
    monkeypatch.setitem(scales.SETTINGS["smoke"]["confidence"], "epochs", EPOCHS)
    with driver(tmp_path, environment) as process:
        wait_for(lambda: max(trained(tmp_path).values(), default=0) > 2, process)
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "Repeat the command to continue" in output
    assert "Traceback" not in output
    assert not at_work()
    assert trained(tmp_path), "nothing was under way"

    name, before = next(iter(trained(tmp_path).items()))
    with driver(tmp_path, environment) as process:
        pid = wait_for(lambda: at_work(name), process)
        wait_for(lambda: trained(tmp_path).get(name, EPOCHS) > before, process)
        os.kill(pid, signal.SIGKILL)
        assert name in trained(tmp_path), "it was over before"
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert f"started again because its worker was lost ({socket.gethostname()}, process {pid})" in output
    assert "2/2" in output

    line = ["study", "run", "confidence", "--workers", "0", "--work", str(tmp_path / "elsewhere")]
    assert cli.main([*line, "--results", str(tmp_path / "whole")]) == 0
    found, whole = (Store(tmp_path / name).read("confidence", "smoke") for name in ("results", "whole"))
    assert len(whole) == 2
    assert {name: plain(result) for name, result in found.items()} == {n: plain(r) for n, r in whole.items()}
    assert found[name]["trained"]["continued"]


@pytest.mark.slow
def test_runs_start_finish_and_fail(nodes, tmp_path):
    environment, client = nodes
    good, broken = Spec(SMALL), Spec({**SMALL, "data_classes": "0,dog"})
    specs = json.dumps([dict(spec.options) for spec in (good, broken)])
    line = [sys.executable, "-c", EVENTS, client, specs, str(tmp_path / "work")]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    of = {spec: [event[1:] for event in events if event[0] == spec.hash] for spec in (good, broken)}
    assert [what for what, *_ in of[good]][:1] == ["started"]
    assert of[good][-1][0] == "finished"
    assert plain(of[good][-1][1]) == plain(json.loads(json.dumps(execute(good, tmp_path / "here"))))
    assert of[broken][-1][:2] == ["failed", None]
    assert of[broken][-1][2].startswith("UsageError: Unknown class")


@pytest.mark.slow
def test_tasks_import_a_study_of_ones_own(nodes, tmp_path):
    write_parts(tmp_path, "clustered", study=True)
    line = [sys.executable, "-m", "torchmcl", "study", "run", "clustered.py", "--on", "auto"]
    done = subprocess.run(line, env=nodes[0], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(Store(tmp_path / "results").read("clustered", "smoke")) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--on nonsense", "Expected the cluster to be ray://HOST:PORT, auto or local, got 'nonsense'"),
        ("--on ray://nowhere", "Expected the cluster to be ray://HOST:PORT, auto or local, got 'ray://nowhere'"),
        ("--on ray://127.0.0.1:{port}", "Connection refused"),
        ("--on auto", "Connection refused"),
        ("--on local --gpus-per-run 1.5", "Expected a fraction of 1 or a whole number of GPUs per run, got 1.5"),
        ("--on local --gpus-per-run -0.5", "Expected a fraction of 1 or a whole number of GPUs per run, got -0.5"),
        ("--on local --cpus-per-run 2.5", "Expected a fraction of 1 or a whole number of CPUs per run, got 2.5"),
        ("--on local --cpus-per-run 0", "Expected more than 0 CPUs per run, got 0"),
    ],
)
def test_bad_input_is_one_line(line, problem, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    port = free_port()  # where nobody listens
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert cli.main(["study", "run", "ablation", *line.format(port=port).split()]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_ray_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["study", "run", "ablation", "--on", "local"]) == 2
    assert capsys.readouterr().err == ("torchmcl: --on needs Ray. Try: pip install 'torchmcl[cluster]'\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_more_than_any_node_has_is_refused(nodes, tmp_path):
    line = [sys.executable, "-m", "torchmcl", "study", "run", "confidence", "--on", "auto", "--gpus-per-run", "0.5"]
    done = subprocess.run(line, env=nodes[0], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "No node has the 1 CPUs and 0.5 GPUs that a run needs. The nodes have 1 CPUs and 0 GPUs; 1 CPUs and 0 GPUs."
        in done.stderr
    )
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())

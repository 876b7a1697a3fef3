"""Lightning's loggers: the configuration once, each epoch once however often it is stopped, the test metrics."""

import csv
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml
from lightning.fabric.loggers import CSVLogger as FabricCSVLogger
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger

from stopping import stopped_and_continued
from torchmcl import UsageError, fit
from torchmcl.training import Callback
from torchmcl.training.run_folder import read_log

TINY = {"network": "mlp", "data": "digits", "members": 2, "epochs": 3, "width": 8, "data_limit": 300}
STOPS = {2, 3, 7}  # of nine steps: within the first epoch, at its end, and at the start of the third


class Noted(Logger):
    """Notes every call, and fails where it is told to."""

    name, version = "noted", 0

    def __init__(self, fails=()):
        self.fails, self.params, self.rows, self.ends = fails, [], [], []

    def log_hyperparams(self, params, *arguments, **options):
        self._may("log_hyperparams")
        self.params.append(params)

    def log_metrics(self, metrics, step=None):
        self._may(f"log_metrics {step}")
        self.rows.append((step, metrics))

    def save(self):
        self._may(f"save {len(self.rows)}")

    def finalize(self, status):
        self._may(f"finalize {status}")
        self.ends.append(status)

    def _may(self, call):
        if call in self.fails:
            raise ConnectionError(f"no server\nfor {call}")

    @property
    def epochs(self):
        return [step for step, row in self.rows if "loss" in row]

    @property
    def tests(self):
        return [step for step, row in self.rows if "test/top1_error" in row]


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_configuration_epochs_and_test_metrics(tmp_path):
    noted = Noted()
    trained = fit("amcl", **TINY, loggers=[noted], out=tmp_path / "run")
    assert noted.params == [yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())]
    assert noted.ends == ["success"]
    assert [step for step, _ in noted.rows] == [1, 2, 3, 3]
    written = read_log(tmp_path / "run")
    for (_, row), line in zip(noted.rows, written, strict=False):
        assert row == {name: value for name, value in line.items() if name not in ("epoch", "phase")}
    last = noted.rows[-1][1]
    assert last["test/top1_error"] == trained.metrics["top1_error"]
    assert {type(value) for _, row in noted.rows for value in row.values()} <= {int, float}


def test_they_belong_to_the_call_alone(tmp_path):
    fit("ie", **TINY, out=tmp_path / "one")
    fit("ie", **TINY, out=tmp_path / "two", loggers=[Noted()])
    for name in ("config.yaml", "metrics.json", "log.csv", "model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_run_without_a_folder():
    one, two = Noted(), Noted()  # of the same name and version
    fit("ie", **TINY, loggers=[one, two])
    assert one.rows == two.rows
    assert one.epochs == [1, 2, 3]


def test_each_epoch_once_over_interruptions(tmp_path, monkeypatch):
    noted = Noted()

    def train(resume):
        fit("ie", **TINY, out=tmp_path / "run", resume=resume, loggers=[noted])

    assert stopped_and_continued(monkeypatch, STOPS, train) == 3
    assert (noted.epochs, noted.tests, len(noted.params)) == ([1, 2, 3], [3], 1)
    assert noted.ends == ["failed", "failed", "failed", "success"]


def test_one_that_comes_later_is_told_everything(tmp_path, monkeypatch):
    loggers = [[], [Noted()]]

    def train(resume):
        fit("ie", **TINY, out=tmp_path / "run", resume=resume, loggers=loggers[resume])

    assert stopped_and_continued(monkeypatch, {7}, train) == 1
    assert (loggers[1][0].epochs, len(loggers[1][0].params)) == ([1, 2, 3], 1)


@pytest.mark.parametrize("call", ["log_hyperparams", "log_metrics 2", "log_metrics 3", "save 2", "finalize success"])
def test_one_that_fails_is_one_line_and_the_run_resumes(call, tmp_path):
    good, bad = Noted(), Noted(fails=(call, "finalize failed"))
    with pytest.raises(UsageError, match=f"ConnectionError in {call.split()[0]} of Noted: no server for") as problem:
        fit("ie", **TINY, loggers=[good, bad], out=tmp_path / "run")
    assert "\n" not in str(problem.value)
    bad.fails = ()
    fit("ie", **TINY, loggers=[good, bad], out=tmp_path / "run", resume=True)
    for noted in (good, bad):
        assert (noted.epochs, noted.tests, len(noted.params)) == ([1, 2, 3], [3], 1)


def test_tensorboard_needs_a_folder():
    with pytest.raises(UsageError, match="TensorBoard log needs a run folder"):
        fit("ie", **TINY, tensorboard=True)


@pytest.mark.parametrize("wrong", [3, Noted, Callback()])
def test_what_is_no_logger_is_refused(wrong):
    with pytest.raises(UsageError, match="Expected a Lightning logger, got"):
        fit("ie", **TINY, loggers=[wrong])


@pytest.mark.parametrize("kind", [CSVLogger, FabricCSVLogger])
@pytest.mark.parametrize("version", [None, 7])
@pytest.mark.filterwarnings("ignore:Experiment logs directory:UserWarning")
def test_csv(kind, version, tmp_path, monkeypatch):
    """A new object begins a new file, even of the same version: it holds every epoch once all the same."""
    made = []

    def train(resume):
        made.append(kind(tmp_path / "logs", version=version))
        fit("ie", **TINY, out=tmp_path / "run", resume=resume, loggers=made[-1:])

    assert stopped_and_continued(monkeypatch, STOPS, train) == 3
    rows = rows_of(tmp_path / "logs" / "lightning_logs" / f"version_{made[-1].version}" / "metrics.csv")
    assert [row["step"] for row in rows if row["loss"]] == ["1", "2", "3"]
    assert [row["step"] for row in rows if row["test/top1_error"]] == ["3"]


def test_csv_with_the_same_object(tmp_path, monkeypatch):
    logger = CSVLogger(tmp_path / "logs")

    def train(resume):
        fit("ie", **TINY, out=tmp_path / "run", resume=resume, loggers=[logger])

    assert stopped_and_continued(monkeypatch, STOPS, train) == 3
    rows = rows_of(tmp_path / "logs" / "lightning_logs" / "version_0" / "metrics.csv")
    assert [row["step"] for row in rows if row["loss"]] == ["1", "2", "3"]
    hyperparameters = yaml.safe_load((tmp_path / "logs" / "lightning_logs" / "version_0" / "hparams.yaml").read_text())
    assert hyperparameters["width"] == 8


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {name: [event.step for event in seen.Scalars(name)] for name in seen.Tags()["scalars"]}


def test_tensorboard(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'torchmcl[tensorboard]'")

    def train(resume):
        logger = TensorBoardLogger(tmp_path / "logs", version="one")
        fit("ie", **TINY, out=tmp_path / "run", resume=resume, loggers=[logger], tensorboard=True)

    assert stopped_and_continued(monkeypatch, STOPS, train) == 3
    for folder in (tmp_path / "logs" / "lightning_logs" / "one", tmp_path / "run" / "tensorboard"):
        found = scalars(folder)
        assert found["loss"] == found["top1_error"] == [1, 2, 3]
        assert found["test/top1_error"] == [3]


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch):
    """The address of a store of files."""
    if find_spec("mlflow") is None:
        pytest.skip("needs mlflow: pip install mlflow-skinny")
    address = f"file:{tmp_path / 'mlruns'}"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)  # the logger sets it too: here it is set back
    return address


def test_mlflow(mlflow_store, tmp_path, monkeypatch):
    from lightning.pytorch.loggers import MLFlowLogger

    runs = []

    def train(resume):
        logger = MLFlowLogger("digits", tracking_uri=mlflow_store, run_id=runs[0] if runs else None)
        runs.append(logger.run_id)
        fit("amcl", **TINY, out=tmp_path / "run", resume=resume, loggers=[logger], checkpoint_steps=len(runs))

    assert stopped_and_continued(monkeypatch, STOPS, train) == 3
    from mlflow.tracking import MlflowClient

    client = MlflowClient(mlflow_store)
    run = client.get_run(runs[0])
    assert run.info.status == "FINISHED"
    assert run.data.params["network"] == "mlp"
    assert run.data.params["checkpoint_steps"] == "1"  # of the first call: MLflow refuses to change them
    for name, column in (("loss", "loss"), ("top1_error", "top1_error"), ("share_1", "share_1")):
        history = client.get_metric_history(runs[0], name)
        assert [(row.step, row.value) for row in history] == [
            (row["epoch"], row[column]) for row in read_log(tmp_path / "run")
        ]
    assert [row.step for row in client.get_metric_history(runs[0], "test/top1_error")] == [3]


KILLED = """
import os, signal, sys
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger
from torchmcl import fit

class Deadly(CSVLogger):
    def log_metrics(self, metrics, step=None):
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().log_metrics(metrics, step)

folder, store, resumed = sys.argv[1:]
first = (CSVLogger if resumed else Deadly)(folder + "/logs")
second = MLFlowLogger("digits", tracking_uri=store, run_id=resumed or None)
print(second.run_id, flush=True)
fit("ie", "mlp", "digits", members=2, epochs=3, width=8, data_limit=300, out=folder + "/run",
    resume=bool(resumed), loggers=[first, second])
"""


@pytest.mark.slow
def test_killed_between_saving_and_logging(mlflow_store, tmp_path):
    """Epoch 2 is saved, the first logger dies of it, and the second, which has not been told, is told on resuming."""

    def run(*arguments):
        line = [sys.executable, "-c", KILLED, str(tmp_path), mlflow_store, *arguments]
        return subprocess.run(line, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    first = run("")
    assert first.returncode == -signal.SIGKILL, first.stderr
    from mlflow.tracking import MlflowClient

    client, name = MlflowClient(mlflow_store), first.stdout.split()[0]
    assert [row.step for row in client.get_metric_history(name, "loss")] == [1]
    second = run(name)
    assert second.returncode == 0, second.stderr
    assert [row.step for row in client.get_metric_history(name, "loss")] == [1, 2, 3]
    assert client.get_run(name).info.status == "FINISHED"


TOGETHER = """
import sys
from lightning.pytorch.loggers import CSVLogger
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
from torchmcl import fit

class Unguarded(CSVLogger):
    def log_metrics(self, metrics, step=None):
        with open("steps.txt", "a") as file:
            print(step, file=file)
        super().log_metrics(metrics, step)

metrics = {"accuracy": MulticlassAccuracy(10, average="micro"), "confusion": MulticlassConfusionMatrix(10)}
fit("ie", "mlp", "digits", members=2, epochs=2, width=8, data_limit=301, out="run", devices=2,
    accelerator="cpu", strategy="ddp", loggers=[Unguarded("logs")], metrics=metrics)
"""


def test_two_processes_log_once_and_metrics_see_all_of_it(tmp_path):
    (tmp_path / "train.py").write_text(TOGETHER)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    options = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path, "timeout": 240}
    done = subprocess.run([sys.executable, "train.py"], **options)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "logs" / "lightning_logs").iterdir()] == ["version_0"]
    rows = rows_of(tmp_path / "logs" / "lightning_logs" / "version_0" / "metrics.csv")
    assert [row["step"] for row in rows] == (tmp_path / "steps.txt").read_text().split() == ["1", "2", "2"]
    for row in rows[:2]:
        assert float(row["accuracy"]) == pytest.approx(1 - float(row["top1_error"]) / 100, abs=2e-6)
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["extra"]["accuracy"] == pytest.approx(1 - figures["top1_error"] / 100, abs=2e-6)
    assert sum(figures["extra"]["confusion"]) == figures["examples"]

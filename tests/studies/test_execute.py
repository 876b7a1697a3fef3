"""A run is a pure function, whoever calls it, however often it is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from torchmcl import data, methods
from torchmcl.analysis.density import BINS
from torchmcl.errors import UsageError
from torchmcl.inference import feature_store
from torchmcl.inference.predictor import Specialists
from torchmcl.structures.rejection import Rejection
from torchmcl.studies import store
from torchmcl.studies.execute import collect_result, execute, load
from torchmcl.studies.runner import processes
from torchmcl.studies.scales import scale
from torchmcl.studies.spec import Spec

# A real `study run`, with longer trainings than smoke has, so that a signal finds one under way.
# A shell's background process ignores SIGINT, and so would its children: here it is heard.
DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from torchmcl import cli
from torchmcl.studies import scales
scales.SETTINGS["smoke"]["confidence"]["epochs"] = 16
sys.exit(cli.main(sys.argv[1:]))
"""
SMALL = {"method": "amcl", "network": "simple_cnn", "data": "digits", "data_limit": 120, "width": 4, "members": 2}
SMALL |= {"epochs": 3, "warmup": 2, "k": 1, "batch_size": 32, "seed": 1, "preset": "light"}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    spec = Spec(SMALL, ("flow", "confidence", "auxiliary:digits/3,4"))
    return spec, folder, execute(spec, folder)


def plain(result):
    return {name: value for name, value in result.items() if name not in ("trained", "study", "scale", "format")}


def start(folder, workers):
    line = ["study", "run", "confidence", "--workers", str(workers), "--results", str(folder / "results")]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *line, "--work", str(folder / "work")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for_epochs(process, folder, count):
    """Until some training has that many epochs behind it."""
    while process.poll() is None:
        if any(len(log.read_text().splitlines()) > count for log in folder.glob("work/*/log.csv")):
            return
        time.sleep(0.01)
    pytest.fail(f"it ended before: {process.communicate()[0]}")


def unfinished(folder):
    return [path for path in folder.glob("work/*/config.yaml") if not (path.parent / "metrics.json").exists()]


@pytest.mark.slow
def test_a_study_that_is_stopped_and_killed_goes_on(tmp_path, one_thread, monkeypatch):
    process = start(tmp_path, one_thread)
    wait_for_epochs(process, tmp_path, 2)
    process.send_signal(signal.SIGINT)  # politely first
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "Repeat the command to continue" in output
    assert "Traceback" not in output
    assert unfinished(tmp_path)
    process = start(tmp_path, one_thread)
    wait_for_epochs(process, tmp_path, 6)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert unfinished(tmp_path), "nothing was under way"
    from torchmcl import cli
    from torchmcl.studies import scales

    monkeypatch.setitem(scales.SETTINGS["smoke"]["confidence"], "epochs", 16)
    line = ["study", "run", "confidence", "--workers", "0", "--results"]
    assert cli.main([*line, str(tmp_path / "results"), "--work", str(tmp_path / "work")]) == 0
    assert cli.main([*line, str(tmp_path / "whole"), "--work", str(tmp_path / "elsewhere")]) == 0
    stopped, whole = (store.Store(tmp_path / name).read("confidence", "smoke") for name in ("results", "whole"))
    assert len(whole) == 2
    assert {name: plain(result) for name, result in stopped.items()} == {n: plain(r) for n, r in whole.items()}
    assert any(result["trained"]["continued"] for result in stopped.values())


def test_a_process_of_its_own_finds_the_same(executed, one_thread, tmp_path):
    spec, _, result = executed
    broken = Spec({**SMALL, "data_classes": "0,dog"})
    events = list(processes([spec, broken], tmp_path, workers=one_thread))
    found = {event.spec: event for event in events if event.status != "started"}
    assert plain(found[spec].result) == plain(json.loads(json.dumps(result)))
    assert found[broken].status == "failed"
    assert "Unknown class" in found[broken].reason
    assert not list(tmp_path.glob("*.result.json"))


def test_a_finished_training_is_not_trained_again(executed):
    spec, folder, result = executed
    model = folder / spec.hash / "model.safetensors"
    before = model.stat().st_mtime_ns
    more = execute(Spec(SMALL, ("grad_cam:1",)), folder)
    assert model.stat().st_mtime_ns == before
    assert list(more["records"]) == ["grad_cam:1"]
    assert more["trained"] == result["trained"]
    assert more["wrong"] == result["wrong"]


def test_figures_are_those_of_the_examples(executed):
    _, folder, result = executed
    spec = executed[0]
    specialists, data = Specialists.load(folder / spec.hash), load(spec)
    answer = specialists.predict(data.test.images)
    wrong = [(answer.label != data.test.target).tolist()]
    wrong += [(member[:, :10].argmax(1) != data.test.target).tolist() for member in answer.members]
    assert store.example_errors(result).tolist() == np.array(wrong, dtype=float).tolist()
    for c in range(10):
        here = (data.test.target == c).numpy()
        assert result["errors_of_groups"][c] == pytest.approx(100 * np.array(wrong)[:, here].mean(1), abs=1e-3)
    assert result["examples"] == {"train": 110, "validation": 10, "test": 359}


def test_what_members_want_is_counted(executed):
    """While loss decides it is what they take, so the memory's counts; afterwards each example is still wanted by k."""
    spec, folder, result = executed
    flow = np.array(result["records"]["flow"])
    memory = Specialists.load(folder / spec.hash).memory
    assert flow.shape == (3, 10, 2)
    assert (flow[:2].sum(0) == memory.counts.numpy()).all()
    assert flow[2].sum() == 110
    assert (np.array(result["assigned"])[~memory.flags.numpy()] == 0).all()


def test_recorded_confidence_and_auxiliary_probability(executed):
    spec, folder, result = executed
    specialists, data = Specialists.load(folder / spec.hash), load(spec)
    answer = specialists.predict(data.test.images)
    truth = answer.probabilities[torch.arange(359), data.test.target]
    own = truth[data.test.target == 4]
    expected = np.histogram(own.numpy(), bins=BINS, range=(0, 1))[0]
    assert result["records"]["confidence"]["4"] == expected.tolist()
    said = result["records"]["auxiliary:digits/3,4"]
    whose = specialists.memory.flags[data.test.target].T
    assert said["auxiliary"]["own"]["median"] == pytest.approx(
        float(answer.members[:, :, 10][whose].median()), abs=1e-4
    )
    assert sum(said["auxiliary"]["unseen"]["histogram"]) == 2 * int(
        ((data.test.target == 3) | (data.test.target == 4)).sum()
    )
    losses = [
        -float(answer.members[m, n, data.test.target[n]].log())
        for m in range(2)
        for n in range(359)
        if not specialists.memory.flags[data.test.target[n], m]
    ]
    assert said["cross_entropy"]["others'"]["mean"] == pytest.approx(np.mean(losses), abs=1e-3)


def test_recorded_calibration(executed):
    """Against every temperature of a fine grid."""
    _, folder, _ = executed
    spec = Spec(SMALL, ("calibrated",))
    record = execute(spec, folder)["records"]["calibrated"]
    specialists, data = Specialists.load(folder / spec.hash), load(spec)

    def nll(examples, temperature):
        power = specialists.predict(examples.images).probabilities.double() ** (1 / temperature)
        return -float((power / power.sum(1, keepdim=True))[torch.arange(len(power)), examples.target].log().mean())

    grid = np.geomspace(0.05, 20, 2001)
    prior = 2 / len(data.validation)  # of log T: a normal distribution with deviation 0.5
    best = min(grid, key=lambda temperature: nll(data.validation, temperature) + prior * np.log(temperature) ** 2)
    assert record["temperature"] == pytest.approx(best, rel=0.004)
    assert record["nll"] == pytest.approx(nll(data.test, record["temperature"]), abs=1e-4)
    with pytest.raises(UsageError, match="calibrated needs a validation split"):
        execute(Spec({**SMALL, "data_validation": 0.0}, ("calibrated",)), folder)


@pytest.mark.parametrize("method", ["ie", "amcl"])
def test_recorded_errors_of_accepted_answers(method, tmp_path):
    options = {"network": "mlp", "data": "digits", "data_classes": "0,1,2,3,4", "data_validation": 0.2}
    spec = Spec({**options, "method": method, "members": 2, "width": 8, "epochs": 3}, ("selective:digits/7,8",))
    record = execute(spec, tmp_path)["records"]["selective:digits/7,8"]
    specialists, parts = Specialists.load(tmp_path / spec.hash), load(spec)
    held, test = specialists.predict(parts.validation), specialists.predict(parts.test)
    other = specialists.predict(data.load("digits", classes="7,8").test)
    wrong = (test.label != parts.test.target).tolist()
    assert set(record) == ({"confidence", "claims"} if method == "amcl" else {"confidence"})
    for coverage in (80, 90, 95):
        count = int(np.ceil(coverage / 100 * len(held.label)))
        ordered = held.confidence.sort(descending=True).values
        limit = float(ordered[count - 1 : count + 1].mean())  # between the lowest accepted confidence and the next
        accepted = [confidence >= limit for confidence in test.confidence.tolist()]
        share = sum(accepted) / len(accepted)
        mistakes = sum(a and b for a, b in zip(accepted, wrong, strict=True)) / len(wrong)
        unseen = sum(confidence >= limit for confidence in other.confidence.tolist()) / len(other.label)
        expected = {"coverage": share, "error": mistakes / share, "unseen": unseen}
        expected["joint"] = (mistakes + unseen) / (share + unseen)
        assert record["confidence"][str(coverage)] == pytest.approx(
            {name: 100 * value for name, value in expected.items()}, abs=1e-3
        )
        if method == "amcl":
            specialists.calibrate(parts.validation, coverage=coverage / 100)
            accepted = specialists.predict(parts.test).accepted.double()
            assert record["claims"][str(coverage)]["coverage"] == pytest.approx(100 * float(accepted.mean()), abs=0.01)
            specialists.model_config = replace(specialists.model_config, rejection=Rejection())


def test_accepted_answers_need_a_validation_split(tmp_path):
    spec = Spec({**SMALL, "data_validation": 0.0}, ("selective:digits/7,8",))
    with pytest.raises(UsageError, match="needs a validation split"):
        execute(spec, tmp_path)


@pytest.mark.parametrize(
    "change", [{"epochs": 4}, {"k": 2}, {"beta": 0.3}, {"width": 5}, {"data_limit": 100}, {"seed": 2}]
)
def test_a_run_of_another_configuration_is_not_harvested(executed, change):
    _, folder, _ = executed
    spec = Spec(SMALL)
    assert collect_result(spec, folder / spec.hash)["hash"] == spec.hash
    # What is said in another way, or is the default, is the same.
    assert collect_result(Spec({**SMALL, "gamma": 0.5, "exchange": "default"}), folder / spec.hash)
    with pytest.raises(UsageError, match=f"Expected a run with {next(iter(change))} "):
        collect_result(Spec({**SMALL, **change}), folder / spec.hash)


def test_what_cannot_be_recorded_is_said(executed, tmp_path):
    _, folder, _ = executed
    with pytest.raises(
        UsageError,
        match=r"Unknown record 'weather'. Available: confidence, auxiliary, unseen, unseen_outputs, selective",
    ):
        execute(Spec(SMALL, ("weather",)), folder)
    with pytest.raises(UsageError, match=r"There is no config.yaml in .* Choose the folder of a run"):
        collect_result(Spec(SMALL), tmp_path)


def test_every_method_s_options_count_epochs_that_fit():
    """At each scale no method waits longer than the training lasts."""
    for name in ("smoke", "mini"):
        for method in methods.names():
            options = scale(name).spec(method, seed=0).options
            for option in ("warmup", "pretrain", "rampup", "round"):
                assert options.get(option, 1) <= options["epochs"]


def test_workers_share_the_cores(monkeypatch, tmp_path):
    from torchmcl.studies import runner

    seen = []
    monkeypatch.setattr(runner, "start", lambda spec, work, *, threads: seen.append(threads) or Ended())
    monkeypatch.setattr(runner, "outcome", lambda spec, work, code: runner.Event(spec, "failed"))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert len(list(processes([Spec(SMALL)], tmp_path, workers=3))) == 2
    assert seen == [2]


class Ended:
    returncode = 0

    def poll(self):
        return 0

    def communicate(self):
        return "", ""


def test_the_engine_that_computed_features(executed, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "features_folder", lambda: tmp_path / "cache")
    options = {"network": "efficientnet_lite0", "weights": "none", "image_size": 32, "hidden": 8, "members": 2}
    spec = Spec({**options, "method": "ie", "data": "digits", "data_limit": 40, "epochs": 1})
    result = execute(spec, tmp_path / "work")
    [entry] = feature_store.stores()
    assert result["features"] == entry.about["engine"]
    path = store.Store(tmp_path / "results").write("pretrained", "smoke", spec, result)
    assert store.read(path)["features"] == result["features"]
    assert "features" not in executed[2]  # without a frozen trunk, as in earlier results

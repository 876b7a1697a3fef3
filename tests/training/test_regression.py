"""`fit` with continuous targets: data, units, metrics, calibration, early stopping, resuming, and several processes."""

import csv
import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from equality import same
from stopping import stopped_and_continued
from torchmcl import Regression, Specialists, UsageError, data, fit, methods, metrics
from torchmcl.inference.predictor import RegressionAnswer
from torchmcl.training.config import TrainConfig

TINY = {"members": 3, "epochs": 3, "width": 16, "optimizer": "adam", "learning_rate": 0.01, "verbose": False}


def two_modes(count=400, D=1, seed=7):
    """Targets near 100 + 10 x and 100 - 10 x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(count, 2)).astype(np.float32)
    sign = rng.choice([-1.0, 1.0], size=(count, 1))
    return x, 100 + 10 * x[:, :1] * sign + 0.1 * rng.standard_normal((count, D))


@pytest.fixture(scope="module")
def modes():
    x, y = two_modes()
    return data.from_arrays(x, y, validation=0.2, name="modes")


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    path = tmp_path_factory.mktemp("npz") / "modes.npz"
    x, y = two_modes()
    np.savez(path, x=x, y=y[:, 0])
    return f"npz:{path}"


@pytest.fixture(scope="module")
def trained(npz, tmp_path_factory):
    run = tmp_path_factory.mktemp("trained") / "run"
    return run, fit("annealed", "mlp", npz, score="bce", out=run, **(TINY | {"epochs": 40, "members": 4}))


def values_of(run):
    return json.loads((Path(run) / "metrics.json").read_text())


def test_floats_are_regression_and_the_hypotheses_find_both_modes(trained):
    _, specialists = trained
    task = specialists.method.task
    assert (task.name, task.targets, task.score) == ("Regression", 1, "bce")
    assert task.mean == pytest.approx((100,), abs=1)
    assert task.scale == pytest.approx((10 / 3**0.5,), rel=0.1)
    answer = specialists.predict(np.array([[0.9, 0.5]]))
    assert isinstance(answer, RegressionAnswer)
    assert answer.hypotheses.shape == (4, 1, 1)
    assert float(answer.hypotheses.min()) == pytest.approx(91, abs=1.5)
    assert float(answer.hypotheses.max()) == pytest.approx(109, abs=1.5)
    assert float(answer.mean) == pytest.approx(100, abs=2.5)
    assert specialists.metrics["oracle_rmse"] < 1 < 5 < specialists.metrics["rmse"]


def test_metrics_of_the_run_are_those_of_its_answers(trained, npz):
    _, specialists = trained
    test = data.load(npz, seed=0, validation=0.1).test
    answer, target, values = specialists.predict(test), test.target, specialists.metrics
    expected = {
        "oracle_rmse": metrics.oracle_rmse(answer.hypotheses, target),
        "rmse": metrics.rmse(answer.mean, target),
        "crps": metrics.crps(answer.hypotheses, answer.scores, target),
        "nll": -answer.log_density(target).mean(),
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(float(value), rel=1e-4), name
    assert values["members"] == pytest.approx(metrics.member_rmse(answer.hypotheses, target).tolist(), rel=1e-4)
    assert sum(values["winners"]) == pytest.approx(100, abs=0.01)
    assert sum(values["share"]) == pytest.approx(100, abs=0.01)
    assert set(values["validation"]) == {"oracle_rmse", "rmse", "crps"}
    assert "purity" not in values
    assert torch.equal(answer.most_probable[:, 0], answer.hypotheses[answer.scores.argmax(0), range(len(target)), 0])


def test_a_run_is_loaded_with_its_units_and_its_density(trained):
    run, specialists = trained
    loaded = Specialists.load(run)
    assert loaded.method.task == specialists.method.task
    assert loaded.method.task.bandwidth is not None
    x = two_modes(20, seed=1)[0]
    first, second = specialists.predict(x), loaded.predict(x)
    assert torch.equal(first.hypotheses, second.hypotheses)
    assert torch.equal(first.sample(4, seed=3), second.sample(4, seed=3))
    streamed = RegressionAnswer.cat(list(loaded.stream(x, batch_size=7)))
    torch.testing.assert_close(streamed.hypotheses, first.hypotheses)
    torch.testing.assert_close(streamed.scores, first.scores)


def test_samples_follow_the_density(trained):
    _, specialists = trained
    answer = specialists.predict(np.array([[0.5, 0.5], [0.9, 0.1]]))
    drawn = answer.sample(4000, seed=0)
    assert drawn.shape == (4000, 2, 1)
    grid = torch.linspace(70, 130, 6001)
    for i in range(2):
        one = RegressionAnswer.of(answer.task, answer.outputs[:, i : i + 1].expand(-1, len(grid), -1))
        density = one.log_density(grid[:, None]).exp().double()
        assert float(density.sum() * 0.01) == pytest.approx(1, abs=0.01)
        mean = float((density * grid).sum() * 0.01)
        assert float(drawn[:, i].mean()) == pytest.approx(mean, abs=0.5)


def test_training_is_the_same_in_other_units(npz, tmp_path):
    x, y = two_modes()
    np.savez(tmp_path / "scaled.npz", x=x, y=(1e-6 * (y[:, 0] - 100)))
    one = fit("annealed", "mlp", npz, score="bce", **TINY)
    other = fit("annealed", "mlp", f"npz:{tmp_path}/scaled.npz", score="bce", **TINY)
    for name in ("oracle_rmse", "rmse", "crps"):
        assert other.metrics[name] == pytest.approx(1e-6 * one.metrics[name], rel=0.02), name
    assert other.metrics["nll"] == pytest.approx(one.metrics["nll"] + math.log(1e-6), abs=0.05)


def test_inputs_are_standardised_with_the_training_split_and_stored(tmp_path):
    x, y = two_modes()
    x = np.concatenate([1e4 + 100 * x, np.full((len(x), 1), 5.0)], axis=1)  # the last feature is constant
    loaded = data.from_arrays(x, y)
    assert loaded.preprocess == "standardize"
    specialists = fit("smcl", "mlp", loaded, out=tmp_path / "run", **TINY)
    kind, _, numbers = specialists.model_config.preprocess.partition(":")
    mean, std = ([float(one) for one in part.split(",")] for part in numbers.split("/"))
    train = loaded.train.images.double()
    assert kind == "normalize"
    assert mean == pytest.approx(train.mean(0).tolist(), rel=1e-6)
    assert std[:2] == pytest.approx(train.std(0, correction=0).tolist()[:2], rel=1e-5)
    assert std[2] == 1
    assert torch.equal(Specialists.load(tmp_path / "run").predict(x[:4]).mean, specialists.predict(x[:4]).mean)
    assert fit("smcl", "mlp", data.from_arrays(x, y, preprocess="none"), **TINY).model_config.preprocess == "none"


def test_a_task_and_options_are_the_same_run(npz, tmp_path):
    by_options = fit("smcl", "mlp", npz, loss="gaussian", score="mixture", out=tmp_path / "run", **TINY)
    task = Regression(1, loss="gaussian", score="mixture")
    by_task = fit("smcl", "mlp", npz, task=task, **TINY)
    by_method = fit(
        methods.build("smcl", 3, task=task), "mlp", npz, **{k: v for k, v in TINY.items() if k != "members"}
    )
    assert same(by_options.ensemble.state_dict(), by_task.ensemble.state_dict())
    assert same(by_options.ensemble.state_dict(), by_method.ensemble.state_dict())
    given = {"method": "smcl", "network": "mlp", "data": npz}
    assert (
        TrainConfig.of(**given, loss="gaussian", score="mixture").identity()
        == TrainConfig.of(**given, task=task).identity()
        == TrainConfig.of(**given, task="regression", loss="gaussian", score="mixture").identity()
        != TrainConfig.of(**given).identity()
        == TrainConfig.of(**given, task=Regression(1)).identity()
    )
    again = fit("smcl", "mlp", npz, task=task, out=tmp_path / "run", resume=True, **TINY)
    assert again.metrics == by_options.metrics
    with pytest.raises(UsageError, match="has loss gaussian, not None"):
        fit("smcl", "mlp", npz, score="mixture", out=tmp_path / "run", resume=True, **TINY)


def test_defaults_for_tables_and_floats(npz, modes, tmp_path):
    x, y = two_modes(20)
    np.savez(tmp_path / "classes.npz", x=x, y=y[:, 0].astype(int))
    np.savez(tmp_path / "images.npz", x=np.zeros((20, 8, 8), dtype=np.uint8), y=y)
    for given, network, optimizer in (
        (npz, "mlp", "adam"),
        (modes, "mlp", "adam"),
        (f"npz:{tmp_path}/classes.npz", "mlp", "sgd"),
        (f"npz:{tmp_path}/images.npz", "simple_cnn", "adam"),
        (f"npz:{tmp_path}/missing.npz", "simple_cnn", "sgd"),
        ("digits", "simple_cnn", "sgd"),
        ("diabetes", "mlp", "adam"),
        ("three-modes", "mlp", "adam"),
    ):
        config = TrainConfig.of("smcl", data=given)
        assert (config.network.name, config.recipe.optimizer) == (network, optimizer)
        assert config.recipe.learning_rate == (0.001 if optimizer == "adam" else 0.1)
        again = TrainConfig.of(**config.resolved().flat()) if isinstance(given, str) else config
        assert again.identity() == config.identity()
    assert TrainConfig.of("smcl", data=npz, optimizer="sgd", learning_rate=0.01).recipe.optimizer == "sgd"
    assert TrainConfig.of("smcl", "mlp", "digits", task="regression").recipe.optimizer == "adam"
    specialists = fit("annealed", data=npz, members=4, score="bce", epochs=15, verbose=False)
    assert specialists.metrics["oracle_rmse"] < 2


def test_a_likelihood_needs_no_calibration(npz):
    specialists = fit("smcl", "mlp", npz, loss="laplace", **TINY)
    assert specialists.method.task.kernel == "laplace"
    assert math.isfinite(specialists.metrics["nll"])
    assert "nll" in specialists.metrics["validation"]
    x, y = two_modes(50, seed=2)
    with pytest.raises(UsageError, match=r"loss laplace.*need no calibration"):
        specialists.calibrate((x, y))
    assert specialists.calibrate((x, y), density="voronoi").bandwidth > 0
    assert specialists.method.task.kernel == "voronoi"


def test_a_loss_of_ones_own(modes, tmp_path):
    def distance(outputs, target, state):
        return (outputs[:, :, :1] - target).abs().mean(-1)

    own = fit("smcl", "mlp", modes, task=Regression(1, loss=distance), out=tmp_path / "run", **TINY)
    named = fit("smcl", "mlp", modes, loss="absolute", **TINY)
    assert same(own.ensemble.state_dict(), named.ensemble.state_dict())
    x = two_modes(5)[0]
    assert torch.equal(Specialists.load(tmp_path / "run").predict(x).mean, own.predict(x).mean)


@pytest.mark.parametrize("exchange", ["none", "weight_sharing"])
def test_separate_networks_and_heads_on_one_trunk(modes, tmp_path, exchange):
    def network(outputs):
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, outputs))

    options = {name: value for name, value in TINY.items() if name != "width"}
    specialists = fit("annealed", network, modes, cut=2, exchange=exchange, score="bce", **options)
    trunks, heads = (1, 3) if exchange == "weight_sharing" else (3, 3)
    assert specialists.metrics["parameters"] == trunks * (2 * 16 + 16) + heads * (16 * 2 + 2)
    assert specialists.predict(two_modes(5)[0]).hypotheses.shape == (3, 5, 1)


def test_several_values_and_several_targets(tmp_path):
    x, _ = two_modes(200)
    rng = np.random.default_rng(3)
    plane = rng.standard_normal((200, 2)) * [1, 1000]
    specialists = fit("annealed", "mlp", data.from_arrays(x, plane, validation=0.2), score="bce", **TINY)
    assert specialists.predict(x[:5]).hypotheses.shape == (3, 5, 2)
    assert {"energy_score", "crps", "nll"} <= set(specialists.metrics)
    several = np.stack([plane, -plane, np.full_like(plane, np.nan)], axis=1)
    several[::2, 1] = np.nan
    np.savez(tmp_path / "several.npz", x=x, y=several)
    specialists = fit("annealed", "mlp", f"npz:{tmp_path}/several.npz", score="bce", **TINY)
    assert specialists.predict(x[:5]).hypotheses.shape == (3, 5, 2)
    assert specialists.metrics["emd"] > 0
    assert math.isfinite(specialists.metrics["nll"])


class Pairs(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y).float()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def test_a_dataset_of_floats_is_the_same_data(tmp_path):
    x, y = two_modes(120)
    in_memory = data.from_arrays(torch.from_numpy(x), torch.from_numpy(y), validation=0.2)
    streamed = data.from_dataset(Pairs(x, y), validation=0.2)
    with_targets = data.from_dataset(Pairs(x, y), targets=y, validation=0.2)
    for other in (streamed, with_targets):
        for part in ("train", "validation", "test"):
            assert torch.equal(other.parts[part].target, in_memory.parts[part].target)
    runs = [fit("smcl", "mlp", one, workers=0, **TINY) for one in (in_memory, streamed)]
    assert same(runs[0].ensemble.state_dict(), runs[1].ensemble.state_dict())


def test_early_stopping_on_a_proper_score(modes, tmp_path):
    options = TINY | {"epochs": 40, "learning_rate": 0.05}
    fit("smcl", "mlp", modes, patience=1, out=tmp_path / "run", **options)
    rows = list(csv.DictReader((tmp_path / "run" / "log.csv").read_text().splitlines()))
    crps = [float(row["crps"]) for row in rows]
    values = values_of(tmp_path / "run")
    assert len(rows) < 40
    assert values["best_epoch"] == crps.index(min(crps)) + 1
    assert values["validation"]["crps"] == min(crps)
    fit("smcl", "mlp", modes, patience=2, monitor="oracle_rmse", out=tmp_path / "other", **options)
    rows = list(csv.DictReader((tmp_path / "other" / "log.csv").read_text().splitlines()))
    errors = [float(row["oracle_rmse"]) for row in rows]
    assert values_of(tmp_path / "other")["best_epoch"] == errors.index(min(errors)) + 1
    with pytest.raises(UsageError, match=r"Unknown metric 'accuracy' for monitor. Available: oracle_rmse, rmse"):
        fit("smcl", "mlp", modes, patience=2, monitor="accuracy", **TINY)


def test_a_hypothesis_that_never_wins_is_reported(modes):
    def network(outputs):
        return nn.Linear(2, outputs)

    networks = [network(1) for _ in range(3)]
    nn.init.constant_(networks[2].bias, 1e4)
    options = {name: value for name, value in TINY.items() if name not in ("width", "members")}
    specialists = fit("smcl", networks, modes, **options)
    assert specialists.metrics["winners"][2] == 0
    assert any("Hypothesis 3 is never the closest" in text for text in specialists.metrics["warnings"])
    assert any("Member 3 took nothing" in text for text in specialists.metrics["warnings"])


def test_a_stopped_run_resumes_exactly(npz, tmp_path, monkeypatch):
    options = TINY | {"batch_size": 32, "score": "bce", "negatives": 1, "checkpoint_steps": 3}
    whole = fit("annealed", "mlp", npz, out=tmp_path / "whole", **options)

    def train(resume):
        fit("annealed", "mlp", npz, out=tmp_path / "part", resume=resume, **options)

    assert stopped_and_continued(monkeypatch, (4, 13, 20), train) == 3
    resumed = Specialists.load(tmp_path / "part")
    assert same(whole.ensemble.state_dict(), resumed.ensemble.state_dict())
    assert values_of(tmp_path / "whole") == values_of(tmp_path / "part")
    assert (tmp_path / "whole" / "log.csv").read_text() == (tmp_path / "part" / "log.csv").read_text()


def test_two_processes_do_what_one_does(npz, tmp_path):
    command = [sys.executable, "-m", "torchmcl", "train", "--method", "annealed", "--network", "mlp", "--data", npz]
    command += shlex.split("--members 3 --epochs 3 --width 16 --optimizer adam --learning-rate 0.01 --score bce")
    command += ["--accelerator", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name, more in (("one", []), ("two", ["--devices", "2", "--strategy", "ddp"])):
        done = subprocess.run(
            [*command, *more, "--out", str(tmp_path / name)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    one, two = values_of(tmp_path / "one"), values_of(tmp_path / "two")
    for name in ("oracle_rmse", "rmse", "crps", "nll"):
        assert two[name] == pytest.approx(one[name], rel=1e-3), name
    assert two["examples"] == one["examples"]
    assert two["assigned"] == one["assigned"]


def test_amcl_declines_examples_instead_of_scoring_them(modes, tmp_path):
    specialists = fit("amcl", "mlp", modes, memory=False, out=tmp_path / "run", **TINY)
    x = two_modes(5)[0]
    answer = Specialists.load(tmp_path / "run").predict(x)
    assert answer.scores.sum(0).tolist() == pytest.approx([1] * 5)
    assert not torch.allclose(answer.scores, torch.full_like(answer.scores, 1 / 3))
    assert torch.equal(answer.scores, specialists.predict(x).scores)
    with pytest.raises(UsageError, match="not classes that a memory can count"):
        fit("amcl", "mlp", modes, **TINY)


def test_without_a_validation_split_there_is_no_density_until_it_is_calibrated():
    x, y = two_modes()
    specialists = fit("annealed", "mlp", data.from_arrays(x, y), **TINY)
    assert "nll" not in specialists.metrics
    with pytest.raises(UsageError, match="has no density"):
        specialists.predict(x[:2]).sample(3)
    with pytest.raises(UsageError, match="has no density"):
        specialists.predict(x[:2]).log_density(torch.zeros(2, 1))
    density = specialists.calibrate((x, y), density="mixture")
    assert len(density.spread) == 3
    assert specialists.predict(x[:2]).sample(3).shape == (3, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": lambda y: np.where(np.arange(len(y)) == 5, np.nan, y[:, 0])}, "finite targets, got nan in example 5"),
        ({"y": lambda y: np.full(len(y), 3.5)}, "Target 0 is 3.5 for all"),
        ({"y": lambda y: np.full(len(y), np.inf)}, "from -1e.15 to 1e.15 in y, got inf"),
        ({"y": lambda y: 1e30 * y}, "Expected numbers to predict from"),
        ({"y": lambda y: y[:, :, None, None]}, r"floats \(N,\), \(N, D\) or \(N, T, D\) in y"),
        (
            {"y": lambda y: y.astype(int)[:, 0], "loss": "huber"},
            "option loss belongs to regression, but .* are classes",
        ),
        ({"y": lambda y: y.astype(int)[:, 0], "task": "regression"}, "Regression has no classes, but the targets are"),
        ({"y": lambda y: y.astype(int)[:, 0], "task": Regression(1)}, "Convert integer targets to floats"),
        ({"task": "classification"}, r"which has floats: Expected 2 to .* classes"),
        ({"task": Regression(2)}, "data has 1 values per target, but the task has 2"),
        ({"loss": "cubed"}, "Unknown loss 'cubed'"),
        ({"score": "mixture"}, "needs a likelihood"),
        ({"method": "cmcl"}, "class probabilities for cmcl, got Regression"),
        ({"members": 500}, "at least 500 training examples"),
        ({"class_weight": "balanced"}, "class_weight needs classes"),
        ({"sampling": "classes"}, "Cannot sample by class"),
        ({"task": Regression(1, loss=lambda o, y, s: (o - y).square())}, r"floating point loss \(M, B\) .* got \(3, "),
        ({"network": "simple_cnn"}, "Expected images"),
        ({"data_classes": "a,b"}, "numbers to predict, not classes"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, change, message):
    x, y = two_modes()
    change = dict(change)
    y = change.pop("y", lambda y: y)(y)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    options = {"method": "smcl", "network": "mlp", "data": f"npz:{tmp_path}/data.npz", **TINY, **change}
    if options["network"] != "mlp":
        options.pop("width")
    with pytest.raises(UsageError, match=message) as caught:
        fit(**options, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_targets_of_another_kind_in_the_test_set():
    x, y = two_modes(20)
    with pytest.raises(UsageError, match="training targets are floats, but y_test contains classes"):
        data.from_arrays(x, y, x, y.astype(int)[:, 0])
    with pytest.raises(UsageError, match="training targets are classes, but y_test contains floats"):
        data.from_arrays(x, y.astype(int)[:, 0], x, y)
    with pytest.raises(UsageError, match="1 values per target as in training in y_test, got 2"):
        data.from_arrays(x, y, x, np.hstack([y, y]))
    with pytest.raises(UsageError, match="names of classes are given, but y contains floats"):
        data.from_arrays(x, y, classes=["a", "b"])

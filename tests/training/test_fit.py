"""Trainings in this process, on digits: what is learned, kept, repeated and continued."""

import csv
import json

import pytest
import torch
import yaml

from equality import same
from stopping import stopped_and_continued
from torchmcl import DivergedError, UsageError, methods
from torchmcl.inference.predictor import Specialists
from torchmcl.training import fit

TINY = {"network": "mlp", "members": 2, "epochs": 3, "width": 16, "verbose": False, "data_limit": 400}


def state_of(run):
    return torch.load(run / "checkpoints" / "last.pt", weights_only=True)


@pytest.mark.parametrize("method", methods.names())
def test_every_method_trains_from_the_same_call(method, tmp_path):
    options = {"pretrain": 1} if method == "mcl_kd" else {"round": 2} if method == "mcl" else {}
    specialists = fit(method, data="digits", out=tmp_path / "run", **TINY, **options)
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["top1_error"] < 90
    assert len(figures["members"]) == len(figures["share"]) == 2
    assert sum(figures["share"]) == pytest.approx(100, abs=0.01)
    assert specialists.method.name == method


def test_amcl_learns_digits(tmp_path):
    fit("amcl", "simple_cnn", "digits", members=3, epochs=8, warmup=3, width=8, out=tmp_path / "run", verbose=False)
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["oracle_error"] <= figures["top1_error"] < 15
    assert figures["purity"] == 100
    assert all(sum(row) == 1 for row in figures["flags"])
    assert figures["assigned"][0][figures["flags"][0].index(1)] > 0


def test_a_run_folder(tmp_path):
    run = tmp_path / "run"
    fit("amcl", data="digits", out=run, **TINY)
    names = {path.name for path in run.iterdir()}
    assert names == {"config.yaml", "metrics.json", "model.safetensors", "checkpoints", "log.csv", "flow.npz"}
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["method"] == "amcl"
    assert config["epochs"] == 3
    rows = list(csv.DictReader((run / "log.csv").read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert {"loss", "oracle_error", "top1_error", "share_1", "share_2", "phase", "learning_rate"} <= rows[0].keys()


def test_the_same_seed_gives_the_same_run_and_another_another(tmp_path):
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        fit("cmcl", "simple_cnn", "digits", members=2, epochs=2, width=4, seed=seed, out=tmp_path / name, verbose=False)
    one, two, other = (state_of(tmp_path / name) for name in ("one", "two", "other"))
    assert same(one, two)
    assert not same(one["ensemble"], other["ensemble"])
    assert (tmp_path / "one" / "metrics.json").read_text() == (tmp_path / "two" / "metrics.json").read_text()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("amcl", {"warmup": 2}),
        ("cmcl", {"k": 1, "stochastic": True}),
        ("mcl", {"round": 2}),
        ("mcl_kd", {"pretrain": 2}),
        ("ie", {"ema": 0.9, "clip": 1.0, "optimizer": "adamw", "learning_rate": 0.01}),
        ("smcl", {"augment": "flip,crop,color,cutout"}),
    ],
)
def test_stopped_anywhere_and_continued_is_as_never_stopped(method, options, tmp_path, monkeypatch):
    """After every batch of a short training, one by one: stop, continue in a fresh training, compare to the bit."""
    arguments = {"network": "simple_cnn", "members": 2, "epochs": 4, "width": 4, "batch_size": 100, "verbose": False}
    arguments |= {"data_limit": 300, "data": "digits", **options}
    fit(method, out=tmp_path / "whole", **arguments)
    stops = {1, 4, 5, 9}

    def train(resume):
        fit(method, out=tmp_path / "parts", resume=resume, **arguments)

    times = stopped_and_continued(monkeypatch, stops, train)
    assert times == len(stops)
    assert same(state_of(tmp_path / "whole"), state_of(tmp_path / "parts"))
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"The loss is (nan|inf).*Lower learning_rate"):
        fit("ie", data="digits", out=run, **{**TINY, "epochs": 30, "learning_rate": 1e18, "schedule": "constant"})
    if (run / "checkpoints" / "last.pt").exists():
        state = state_of(run)
        assert all(tensor.isfinite().all() for tensor in state["ensemble"].values())


def test_early_stopping_keeps_the_best(tmp_path):
    run = tmp_path / "run"
    fit("ie", data="digits", out=run, **{**TINY, "epochs": 60, "learning_rate": 0.3, "patience": 2})
    figures = json.loads((run / "metrics.json").read_text())
    rows = list(csv.DictReader((run / "log.csv").read_text().splitlines()))
    assert figures["epochs"] == len(rows) < 60
    errors = [float(row["top1_error"]) for row in rows]
    assert len(errors) - 1 - errors.index(min(errors)) == 2
    assert (run / "checkpoints" / "best.pt").exists()


def test_specialists_come_back_from_the_folder(tmp_path):
    run = tmp_path / "run"
    trained = fit("amcl", "simple_cnn", "digits", members=2, epochs=2, width=4, out=run, verbose=False)
    loaded = Specialists.load(run)
    x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    one, two = trained.predict(x), loaded.predict(x, batch_size=2)
    torch.testing.assert_close(one.probabilities, two.probabilities)
    assert one.members.shape == (2, 5, 11)
    assert loaded.classes == tuple(map(str, range(10)))
    assert torch.equal(loaded.memory.counts, trained.memory.counts)
    with pytest.raises(UsageError, match=r"Expected examples of shape \(B, 1, 8, 8\), got \(5, 3, 8, 8\)"):
        loaded.predict(x.expand(5, 3, 8, 8))


def test_an_existing_run_is_never_overwritten_unless_asked(tmp_path):
    run = tmp_path / "run"
    fit("ie", data="digits", out=run, **TINY)
    before = (run / "metrics.json").read_bytes()
    with pytest.raises(UsageError, match="--overwrite"):
        fit("smcl", data="digits", out=run, **TINY)
    assert (run / "metrics.json").read_bytes() == before
    fit("smcl", data="digits", out=run, overwrite=True, **TINY)
    assert yaml.safe_load((run / "config.yaml").read_text())["method"] == "smcl"


def test_a_finished_run_is_not_trained_again(tmp_path):
    run = tmp_path / "run"
    fit("ie", data="digits", out=run, **TINY)
    before = (run / "checkpoints" / "last.pt").stat().st_mtime_ns
    assert fit("ie", data="digits", out=run, resume=True, **TINY).method.name == "ie"
    assert (run / "checkpoints" / "last.pt").stat().st_mtime_ns == before


def test_own_network_own_method_own_data():
    from torchmcl import data

    def network(outputs):
        return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, outputs))

    torch.manual_seed(0)
    x, y = torch.randn(200, 6), torch.randint(3, (200,))
    own = data.from_arrays(x, y)
    method = methods.build("smcl", members=2, classes=3)
    specialists = fit(method, network, own, epochs=2, verbose=False)
    assert specialists.predict(x[:4]).probabilities.shape == (4, 3)


def test_tensorboard_when_asked(tmp_path):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="needs tensorboard: pip install 'torchmcl[tensorboard]'",
    )
    fit("ie", data="digits", out=tmp_path / "run", tensorboard=True, **TINY)
    seen = event_accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    seen.Reload()
    assert [event.step for event in seen.Scalars("top1_error")] == [1, 2, 3]


def test_bf16_trains_nearly_as_float32(tmp_path):
    arguments = {"network": "simple_cnn", "members": 2, "epochs": 6, "warmup": 2, "width": 8, "verbose": False}
    errors = {}
    for precision in ("32", "bf16-mixed"):
        fit("amcl", data="digits", out=tmp_path / precision, precision=precision, **arguments)
        errors[precision] = json.loads((tmp_path / precision / "metrics.json").read_text())["top1_error"]
    assert errors["32"] < 20
    assert abs(errors["32"] - errors["bf16-mixed"]) < 4


def test_ema_is_what_is_kept(tmp_path):
    run = tmp_path / "run"
    averaged = fit("ie", data="digits", out=run, ema=0.99, **TINY)
    state = state_of(run)
    last, kept = state["ensemble"], averaged.ensemble.state_dict()
    for name, weights in kept.items():
        assert not torch.equal(last[name], weights)
        assert torch.equal(state["averaged"][f"module.{name}"], weights)


def test_an_ensemble_of_one(tmp_path):
    for method in ("ie", "smcl", "cmcl", "vmcl", "amcl"):
        fit(method, data="digits", out=tmp_path / method, **{**TINY, "members": 1, "epochs": 6})
        figures = json.loads((tmp_path / method / "metrics.json").read_text())
        assert figures["members"] == [figures["oracle_error"]]
        assert figures["share"] == [100]

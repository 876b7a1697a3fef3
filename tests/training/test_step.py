"""The step: callable without a training, the same on Fabric and without it, exact with weights, parts and processes."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from equality import same
from stopping import stopped_and_continued
from torchmcl import Ensemble, State, UsageError, data, fit, methods
from torchmcl.data import DataSet, Loader
from torchmcl.data.loader import Batch
from torchmcl.training import fitting
from torchmcl.training.callbacks import Callbacks
from torchmcl.training.config import TrainConfig
from torchmcl.training.device import OneDevice
from torchmcl.training.machine import Machine
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.step import Step, forward, parts

TINY = {"members": 2, "width": 8, "exchange": "none", "learning_rate": 0.05, "batch_size": 64, "verbose": False}


@pytest.fixture(scope="module")
def weighted():
    """Digits, each with a weight of its own."""
    digits = data.load("digits", limit=150)
    weight = torch.empty(len(digits.train)).uniform_(0.1, 3, generator=torch.Generator().manual_seed(0))
    return DataSet("weighted", {"train": replace(digits.train, weight=weight), "test": digits.test})


def first_batch(examples):
    return next(iter(Loader(examples, batch_size=16)))


# Without a training.


def test_the_pure_part_needs_no_training(weighted):
    method = methods.build("amcl", members=3, classes=10, warmup=1)
    ensemble = Ensemble.build(method, "mlp", inputs=64, width=8)
    batch, objective, by_hand = first_batch(weighted.train), method.new_objective(), method.new_objective()
    outcome, output = forward(ensemble, objective, batch, State(1, 2))
    state = State(1, 2, group=batch.target, index=batch.index, sample_weight=batch.weight)
    expected = by_hand(ensemble(batch.x), batch.target, state)
    assert same(outcome, expected)
    assert torch.equal(objective.memory.counts, by_hand.memory.counts)
    assert torch.equal(output.logits, ensemble(batch.x).logits)
    outcome.loss.backward()
    assert all(weight.grad is not None for weight in ensemble.parameters())


def test_a_step_reports_the_same_in_parts_as_in_one(weighted):
    batch = first_batch(weighted.train)
    found = []
    for accumulate in (1, 3):
        method = methods.build("smcl", members=2, classes=10)
        ensemble = Ensemble.build(method, "mlp", inputs=64, width=8).double()
        optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
        step = Step(OneDevice("cpu"), ensemble, ensemble, method.new_objective(), optimizer, accumulate=accumulate)
        found.append([*step(batch._replace(x=batch.x.double()), State(1, 2)), *ensemble.parameters()])
    torch.testing.assert_close(*found)


def test_clipping_without_fabric():
    network = torch.nn.Linear(3, 1)
    network(torch.ones(1, 3)).sum().backward()
    norm = OneDevice("cpu").clip_gradients(network, torch.optim.SGD(network.parameters()), max_norm=0.5)
    assert norm == pytest.approx(2)
    assert torch.cat([weight.grad.flatten() for weight in network.parameters()]).norm() == pytest.approx(0.5)


def test_parts_keep_all_that_a_batch_carries():
    numbers = torch.arange(7)
    batch = Batch(numbers[:, None].float(), numbers, numbers + 10, numbers + 20, 7, numbers + 0.5)
    pieces = [piece for piece, _ in parts(batch, 3)]
    assert [len(piece.x) for piece in pieces] == [3, 2, 2]
    for name in ("x", "target", "index", "group", "weight"):
        assert torch.equal(torch.cat([getattr(piece, name) for piece in pieces]), getattr(batch, name))
    assert [last for _, last in parts(batch, 3)] == [False, False, True]
    assert next(parts(batch, 1))[0] is batch


@pytest.mark.parametrize("options", [{}, {"clip": 0.1, "accumulate": 2}, {"lean": True}])
def test_with_and_without_fabric(options):
    config = TrainConfig.of("amcl", "simple_cnn", "digits", members=2, width=4, epochs=2, data_limit=100, **options)
    states = []
    for fabric in (Machine(accelerator="cpu").build(), OneDevice("cpu")):
        job = fitting.prepare(config)
        training = fitting._training(job, fabric, TrainingProgress(verbose=False), None, Callbacks(()))
        training.run()
        states.append(training.state_dict())
    assert same(*states)


def test_a_loss_that_is_not_finite_with_clipping():
    from torchmcl import DivergedError

    with pytest.raises(DivergedError, match="Lower learning_rate"):
        fit("ie", "mlp", "digits", members=2, width=8, epochs=2, learning_rate=1e30, clip=1e30, verbose=False)


# Weights.


def test_weights_by_a_loop_of_ones_own(weighted):
    """The step of a batch of T examples follows the gradient of sum_b s_b c_b / (T mean(s))."""
    fitted = fit("smcl", "mlp", weighted, **TINY, epochs=2, schedule="constant", weight_decay=0.0)
    method = methods.build("smcl", members=2, classes=10)
    ensemble = Ensemble.build(method, "mlp", inputs=64, width=8, exchange="none", seed=0)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    every = weighted.train.weight
    taken = torch.zeros(10, 2)
    for epoch in (1, 2):
        taken.zero_()
        for batch in Loader(weighted.train, batch_size=64, seed=0).epoch(epoch):
            cost = -ensemble(batch.x).logits.log_softmax(2)[:, torch.arange(len(batch.x)), batch.target]
            least, winner = cost.min(0)
            loss = sum(every[i] * c for i, c in zip(batch.index, least, strict=True)) / (len(batch.x) * every.mean())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for i, y, m in zip(batch.index, batch.target, winner, strict=True):
                taken[y, m] += every[i]
    torch.testing.assert_close(fitted.ensemble.state_dict(), ensemble.state_dict(), rtol=1e-4, atol=1e-5)
    assert np.array(fitted.metrics["assigned"]) == pytest.approx(taken.numpy(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("method", ["ie", "amcl", "mcl", "kdcl"])
def test_a_whole_weight_is_so_many_copies(method):
    digits = data.load("digits", limit=60)
    often = 1 + torch.arange(len(digits.train)) % 3
    copies = digits.train.subset(torch.arange(len(often)).repeat_interleave(often))
    weights = replace(digits.train, weight=often.double())
    found = []
    for train in (copies, weights):
        options = TINY | {"batch_size": 1000}
        found.append(fit(method, "mlp", DataSet("d", {"train": train, "test": digits.test}), **options, epochs=3))
    one, other = found
    torch.testing.assert_close(other.ensemble.state_dict(), one.ensemble.state_dict(), rtol=1e-3, atol=1e-4)
    assert np.array(other.metrics["assigned"]) == pytest.approx(np.array(one.metrics["assigned"]))
    if one.memory is not None:
        assert torch.equal(one.memory.counts.double(), other.memory.counts)


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"lean": True}])
@pytest.mark.parametrize("method", ["smcl", "amcl"])
def test_weights_in_parts_and_lean(weighted, method, options):
    one, other = (fit(method, "mlp", weighted, **TINY, epochs=3, **how) for how in ({}, options))
    torch.testing.assert_close(other.ensemble.state_dict(), one.ensemble.state_dict(), rtol=1e-3, atol=1e-4)
    assert np.array(other.metrics["assigned"]) == pytest.approx(np.array(one.metrics["assigned"]), rel=1e-4)


def test_only_the_proportions_of_weights_matter(weighted):
    eightfold = replace(weighted.train, weight=8 * weighted.train.weight)
    sets = [weighted, DataSet("weighted", {"train": eightfold, "test": weighted.test})]
    one, other = (fit("smcl", "mlp", each, **TINY, epochs=2) for each in sets)
    torch.testing.assert_close(other.ensemble.state_dict(), one.ensemble.state_dict())
    assert other.metrics["share"] == pytest.approx(one.metrics["share"], abs=1e-3)


def test_pixels_of_a_weighted_image(tmp_path):
    masks = data.load("digits-masks", limit=40)
    often = 1 + torch.arange(len(masks.train)) % 2
    train = replace(masks.train, weight=often.float())
    made = DataSet("masks", {"train": train, "test": masks.test}, masks.preprocess)
    found = fit("smcl", "fcn", made, members=2, width=4, epochs=1, unit="pixel", batch_size=8, verbose=False)
    pixels = torch.stack([(often * (masks.train.target == c).sum((1, 2))).sum() for c in range(2)])
    assert np.array(found.metrics["assigned"]).sum(1) == pytest.approx(pixels.numpy())


def test_a_run_goes_on_with_its_own_weights_only(weighted, tmp_path, monkeypatch):
    whole, part = tmp_path / "whole", tmp_path / "part"
    fit("amcl", "mlp", weighted, **TINY, epochs=3, out=whole)

    def train(resume):
        if resume:
            even = DataSet("weighted", {"train": replace(weighted.train, weight=None), "test": weighted.test})
            with pytest.raises(UsageError, match="started with labels"):
                fit("amcl", "mlp", even, **TINY, epochs=3, out=part, resume=True)
        fit("amcl", "mlp", weighted, **TINY, epochs=3, out=part, resume=resume)

    assert stopped_and_continued(monkeypatch, {2, 4}, train) == 2
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (whole / name).read_bytes() == (part / name).read_bytes()


SCRIPT = """
import sys
from dataclasses import replace
import torch
from torchmcl import data, fit
from torchmcl.data import DataSet

digits = data.load("digits", limit=150)
weight = torch.empty(len(digits.train)).uniform_(0.1, 3, generator=torch.Generator().manual_seed(0))
weighted = DataSet("weighted", {"train": replace(digits.train, weight=weight), "test": digits.test})
fit(
    "amcl", "mlp", weighted, members=2, width=8, exchange="none", learning_rate=0.05, batch_size=64, epochs=3, warmup=1,
    accumulate=2, accelerator="cpu", devices=int(sys.argv[2]), out=sys.argv[1], verbose=False,
    strategy="ddp" if sys.argv[2] == "2" else "auto",
)
"""


MASKS = """
import sys
from torch import nn
from torchmcl import data, fit
from torchmcl.data import DataSet, Examples

masks = data.load("digits-masks", limit=71)
train = masks.train
target = train.target.clone()
for at in range(len(target)):
    target[at].view(-1)[: 10 * (at % 8)] = 255
train = Examples(train.images, target, train.classes, train.group, train.groups)
fit(
    "amcl", lambda outputs: nn.Conv2d(1, outputs, 3, padding=1), DataSet("masks", {"train": train, "test": masks.test}),
    members=2, exchange="none", learning_rate=0.05, batch_size=32, epochs=3, warmup=1, unit="pixel",
    accumulate=2, accelerator="cpu", devices=int(sys.argv[2]), out=sys.argv[1], verbose=False,
    strategy="ddp" if sys.argv[2] == "2" else "auto",
)
"""


@pytest.mark.parametrize("script", [SCRIPT, MASKS], ids=["weighted", "ignored pixels, uneven parts"])
def test_two_processes_share_a_batch(script, tmp_path):
    (tmp_path / "script.py").write_text(script)
    results = []
    for devices in ("1", "2"):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / devices), devices]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        rows = list(csv.DictReader((Path(tmp_path) / devices / "log.csv").read_text().splitlines()))
        figures = json.loads((tmp_path / devices / "metrics.json").read_text())
        results.append(([float(row["loss"]) for row in rows], figures))
    (losses, alone), (others, together) = results
    assert others == pytest.approx(losses, abs=1e-4)
    assert np.array(together["counts"]) == pytest.approx(np.array(alone["counts"]), rel=1e-5)
    assert np.array(together["assigned"]) == pytest.approx(np.array(alone["assigned"]), rel=1e-4)

"""Branching: the seed network alone, its copies, the groups of classes, resumed, in two processes, and by its cost."""

import csv
from copy import deepcopy
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from equality import same
from stopping import stopped_and_continued
from torchmcl import Ensemble, State, UsageError, cli, data, fit, methods
from torchmcl.data import preprocess
from torchmcl.data.loader import Batch
from torchmcl.studies.cost import share_of_batch
from torchmcl.training.branch import NO_OTHERS, at_random, confused_together, copy_first_member, seed_objective
from torchmcl.training.callbacks import Callback
from torchmcl.training.config import TrainConfig
from torchmcl.training.device import OneDevice
from torchmcl.training.step import Step
from two_processes import check_two_processes

TINY = {"members": 3, "width": 8, "exchange": "none", "learning_rate": 0.05, "batch_size": 64, "verbose": False}
TINY |= {"epochs": 4, "branch": 2, "data_limit": 300}


# The seed network.


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize(("network", "shape"), [("mlp", (5,)), ("simple_cnn", (1, 8, 8))])
def test_only_the_first_member_is_trained_as_if_it_were_alone(network, shape, lean):
    method = methods.build("amcl", members=3, classes=4)
    options = {"inputs": 5} if network == "mlp" else {"channels": 1}
    ensemble = Ensemble.build(method, network, width=4, exchange="none", **options).double().train()
    alone = Ensemble.build(method, network, width=4, exchange="none", **options).double().train()
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(9, *shape, generator=generator).double(), torch.arange(9) % 4
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.0)
    step = Step(OneDevice("cpu"), ensemble, ensemble, seed_objective(method), optimizer, lean=lean, others=NO_OTHERS)
    found = step(Batch(x, target, torch.arange(9), None, 9), State(1, 2), torch.ones(3, 9))
    expected = nn.functional.cross_entropy(alone(x).logits[0], target)
    expected.backward()
    torch.testing.assert_close(found.loss.double() / 9, expected.detach(), rtol=1e-6, atol=1e-6)
    assert found.weights.tolist() == [[1.0] * 9, [0.0] * 9, [0.0] * 9]
    for own, other in zip(ensemble.parameters(), alone.parameters(), strict=True):
        if other.grad is None:  # a module of another member
            assert not own.grad.any()
        else:  # of the first member, or stacked
            torch.testing.assert_close(own.grad, other.grad)


class Members(Callback):
    """The weights of all members and the state of their optimiser at the end of each epoch."""

    def __init__(self):
        self.epochs = []

    def on_epoch_end(self, row):
        ensemble, optimizer = self.training.unwrapped, self.training.optimizer
        found = [[] for _ in range(len(ensemble.bodies))]
        for part in (ensemble.stems, ensemble.bodies):
            named = [list(module.state_dict().values()) for module in part] if isinstance(part, nn.ModuleList) else []
            for m, own in enumerate(found):
                if named:
                    weights = list(part[m].parameters())
                    moments = [value for weight in weights for value in optimizer.state[weight].values()]
                    own += [value.clone() for value in (*named[m], *moments)]
                else:
                    values = [(w, value) for w in part.parameters() for value in optimizer.state[w].values()]
                    own += [w[m].clone() for w in part.parameters()]
                    own += [value[m].clone() for w, value in values if value.shape == w.shape]
        self.epochs.append(found)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("network", ["mlp", "simple_cnn"])
def test_members_are_copies_until_they_branch(network, optimizer):
    rate = {"sgd": 0.05, "adamw": 0.001}[optimizer]
    members = Members()
    options = TINY | {"width": 4, "optimizer": optimizer, "learning_rate": rate}
    found = fit("amcl", network, "digits", **options, callbacks=[members])
    for epoch, (first, *others) in enumerate(members.epochs, start=1):
        assert len(first) > 3
        assert all(same(first, other) for other in others) == (epoch <= 2)
    assert not same(members.epochs[0][0], members.epochs[1][0])
    assert [sum(row) for row in found.metrics["flags"]] == [1] * 10
    assert sorted(sum(map(np.array, found.metrics["flags"]))) == [3, 3, 4]


def test_copies_of_buffers_and_of_nothing_else():
    def network(outputs):
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(outputs))

    ensemble = Ensemble.build(methods.build("amcl", members=2, classes=3), network, exchange="none")
    ensemble(torch.randn(4, 1, 5, 5))
    first = {name: value.clone() for name, value in ensemble.bodies[0].state_dict().items()}
    assert first["1.running_mean"].any()
    copy_first_member(ensemble)
    assert same(dict(ensemble.bodies[0].state_dict()), first)
    assert same(dict(ensemble.bodies[1].state_dict()), first)
    assert ensemble.bodies[1][0].weight.data_ptr() != ensemble.bodies[0][0].weight.data_ptr()


# The groups.


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(2, 12), st.integers(0, 99), st.data())
def test_groups_are_equally_large(members, classes, seed, drawn):
    k = drawn.draw(st.integers(1, members))
    confusion = torch.rand(classes, classes, generator=torch.Generator().manual_seed(seed))
    for owners in (at_random(classes, members, k, seed=seed), confused_together(confusion, members, k)):
        assert owners.shape == (classes, members)
        assert (owners.sum(1) == k).all()
        assert owners.sum(0).max() - owners.sum(0).min() <= 1
    assert torch.equal(at_random(classes, members, k, seed=seed), at_random(classes, members, k, seed=seed))


def test_random_groups_depend_on_the_seed():
    assert len({str(at_random(10, 5, 1, seed=seed).tolist()) for seed in range(9)}) > 6


@pytest.mark.parametrize("seed", range(20))
def test_confused_classes_are_in_one_group(seed):
    """Against all pairs of groups: clusters with noise are found, whatever the order of the classes."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(8, generator=generator)
    confusion = torch.rand(8, 8, generator=generator) + 2 * (order[:, None] // 4 == order // 4) + 9 * torch.eye(8)

    def within(group):
        return float(confusion[list(group)][:, list(group)].sum())

    halves = list(combinations(range(8), 4))
    best = max(halves, key=lambda half: within(half) + within(set(range(8)) - set(half)))
    owners = confused_together(confusion, members=2, k=1)
    assert {tuple(column.nonzero().flatten().tolist()) for column in owners.T} == {
        best,
        tuple(sorted(set(range(8)) - set(best))),
    }


class Seed(Callback):
    """The ensemble at the end of the seed phase."""

    def on_epoch_end(self, row):
        if row["epoch"] == 2:
            self.ensemble = deepcopy(self.training.unwrapped).eval()


def test_confusions_are_those_of_the_validation_split():
    seed, digits = Seed(), data.load("digits", limit=300, validation=0.2)
    options = {name: value for name, value in TINY.items() if name != "data_limit"}
    found = fit("amcl", "mlp", digits, **options, branch_groups="confusion", callbacks=[seed])
    confusion = torch.zeros(10, 10)
    images, prepare = digits.validation.images, preprocess.get(digits.preprocess)
    for n, label in enumerate(digits.validation.target.tolist()):
        with torch.no_grad():
            confusion[label] += seed.ensemble(prepare(images[[n]])).logits[0, 0].softmax(0)[:10]
    assert found.metrics["flags"] == confused_together(confusion, 3, 1).int().tolist()
    assert found.memory.fixed


# The cost.


class Examples(Callback):
    """The number of examples that pass through each member's body in each epoch."""

    def __init__(self):
        self.counts, self.epochs = {}, []

    def on_train_start(self):
        for m, body in enumerate(self.training.unwrapped.bodies):
            body.register_forward_pre_hook(lambda part, inputs, m=m: self.add(m, len(inputs[0]), part.training))

    def add(self, m, count, training):
        self.counts[m] = self.counts.get(m, 0) + count * training

    def on_epoch_end(self, row):
        self.epochs.append(dict(self.counts))
        self.counts.clear()


@pytest.mark.parametrize("lean", [False, True])
def test_the_seed_phase_costs_one_network(lean):
    examples, digits = Examples(), data.load("digits", limit=500)
    options = {**TINY, "lean": lean, "sample_others": 0.25, "batch_size": 100, "width": 2, "data_limit": None}
    fit("amcl", "simple_cnn", digits, **options, callbacks=[examples])
    count, batches = len(digits.train), -(-len(digits.train) // 100)
    for epoch in examples.epochs[:2]:
        assert epoch == {0: count, 1: 2 * batches, 2: 2 * batches}  # batch statistics need two examples
    for epoch in examples.epochs[2:]:
        assert abs(sum(epoch.values()) - 1.5 * count) < 5 * (0.25 * 0.75 * 2 * count) ** 0.5
    config = TrainConfig.of("amcl", members=5, epochs=20, branch="45%", sample_others=0.25)
    assert share_of_batch(config) == pytest.approx((9 * 1 + 11 * 2) / (20 * 5))
    assert share_of_batch(TrainConfig.of("amcl", members=5, epochs=20, branch=9)) == pytest.approx((9 + 55) / 100)


# Whole runs.


@pytest.mark.parametrize("groups", ["random", "confusion"])
def test_a_resumed_run_is_the_same(groups, tmp_path, monkeypatch):
    whole, part = tmp_path / "whole", tmp_path / "part"
    options = TINY | {"branch_groups": groups, "sample_others": 0.5, "ema": 0.9}
    fit("amcl", "mlp", "digits", **options, out=whole)
    times = stopped_and_continued(
        monkeypatch,
        {2, 5, 8, 11},  # in each epoch, and after the last batch of the seed phase
        lambda resume: fit("amcl", "mlp", "digits", **options, out=part, resume=resume),
    )
    assert times == 4
    for name in ("metrics.json", "log.csv", "model.safetensors"):
        assert (whole / name).read_bytes() == (part / name).read_bytes()
    phases = [row["phase"] for row in csv.DictReader((whole / "log.csv").read_text().splitlines())]
    assert phases == ["seed", "seed", "memory-based", "memory-based"]
    with pytest.raises(UsageError, match="branch"):
        fit("amcl", "mlp", "digits", **options | {"branch": 1}, out=whole, resume=True)


SCRIPT = """
import sys
from torchmcl import fit

fit(
    "amcl", "mlp", "digits", members=3, width=8, exchange="none", learning_rate=0.05, batch_size=24, epochs=4,
    branch="50%", branch_groups="confusion", data_limit=301, accelerator="cpu", devices=int(sys.argv[2]),
    out=sys.argv[1], verbose=False, sample_others=0.5, strategy="ddp" if sys.argv[2] == "2" else "auto",
)
"""


def test_two_processes_do_what_one_does(tmp_path):
    check_two_processes(SCRIPT, tmp_path)


def test_shared_stems_masks_and_k():
    shared = fit("amcl", "simple_cnn", "digits", **TINY | {"exchange": "weight_sharing", "k": 2})
    assert [sum(row) for row in shared.metrics["flags"]] == [2] * 10
    masks = fit("amcl", "fcn", "digits-masks", **TINY | {"width": 4, "batch_size": 16, "data_limit": 60})
    assert sorted(sum(map(np.array, masks.metrics["flags"]))) == [3, 3, 4]
    assert not [text for text in masks.metrics["warnings"] if "take" in text]


# What is refused.


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("smcl", {}, "smcl does not support branch"),
        ("amcl", {"memory": False}, "amcl does not support branch"),
        ("amcl", {"exchange": "feature_fusion"}, "Use exchange=none"),
        ("amcl", {"branch_groups": "confusion", "data_validation": 0.0}, "needs class labels and a validation split"),
        ("amcl", {"branch": 4}, "branch=4 is too long for epochs=4"),
        ("amcl", {"branch": 0}, "Expected branch >= 1"),
        ("amcl", {"branch": "half"}, "Expected branch to be a whole number of epochs or a share"),
        ("amcl", {"branch": None, "branch_groups": "confusion"}, "no effect without branch"),
    ],
)
def test_what_is_refused(method, options, message):
    with pytest.raises(UsageError, match=message) as problem:
        fit(method, "simple_cnn", "digits", **TINY | options)
    assert "\n" not in str(problem.value)


def test_different_networks_are_refused():
    def network(width):
        return lambda outputs: nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs))

    options = {name: value for name, value in TINY.items() if name not in ("members", "width")}
    with pytest.raises(UsageError, match="different networks cannot branch"):
        fit("amcl", [network(4), network(5)], "digits", **options)


def test_the_command_line_and_the_default(tmp_path):
    line = ["train", "--network", "mlp", "--members", "2", "--epochs", "2", "--width", "8", "--quiet"]
    line += ["--data-limit", "100", "--exchange", "none", "--branch", "45%", "--out", str(tmp_path / "run")]
    assert cli.main(line) == 0
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert "branch: 1\n" in stored
    assert "branch_groups: random" in stored
    assert not {"branch", "branch_groups"} & set(TrainConfig.of().identity())
    assert TrainConfig.of(epochs=20, branch="45%").identity()["branch"] == 9

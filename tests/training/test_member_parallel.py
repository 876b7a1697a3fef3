"""Members in different processes: the weights are those of one process to the bit, whatever is trained and resumed."""

import copy
import csv
import json
import os
import shlex
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from torchmcl import Ensemble, UsageError, cli, methods
from torchmcl.training import fit
from torchmcl.training.machine import Machine
from torchmcl.training.member_parallel import MemberParallel, check_members
from torchmcl.training.recipe import Recipe
from torchmcl.training.sample_others import Sample

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
from torchmcl import fit
from torchmcl.data.loader import Loader
from torchmcl.training.signals import Interrupted

out, processes, options, stop = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
rank, reads, epoch = os.environ.get("LOCAL_RANK", "0"), {}, Loader.epoch

def counted(self, number=1, **more):
    for batch in epoch(self, number, **more):
        if self.shuffle:
            reads[number] = reads.get(number, 0) + int((batch.x.flatten(1) != 0).any(1).sum())
        yield batch

class Stop:
    steps = 0

    def on_step_end(self):
        self.steps += 1
        if self.steps == stop and rank == str(processes - 1):
            os.kill(os.getpid(), signal.SIGTERM)

Loader.epoch = counted
try:
    fit(**options, out=out, resume=stop < 0, callbacks=[Stop()], devices=processes, accelerator="cpu", verbose=False,
        strategy="members" if processes > 1 else "auto")
except Interrupted:
    pass
Path(f"{out}/reads-{rank}.json").write_text(json.dumps(reads))
"""
COMMON = {"network": "simple_cnn", "data": "digits", "members": 3, "width": 4, "exchange": "none", "epochs": 3}
COMMON |= {"data_limit": 300, "data_validation": 0.1}
SPARSE = {"warmup": 1, "sample_others": 0.1, "learning_rate": 0.05}


def run(folder, processes, options, stop=0):
    (script := folder.parent / "train.py").write_text(SCRIPT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(script), str(folder), str(processes), json.dumps(COMMON | options), str(stop)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def same(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    return one == two


def check(one, two):
    """The weights, the memory, the state of the optimiser and the counts are equal; only sums of losses are rounded."""
    assert same(*(load_file(folder / "model.safetensors") for folder in (one, two)))
    first, second = (torch.load(folder / "checkpoints" / "last.pt", weights_only=True) for folder in (one, two))
    for name in ("ensemble", "objective", "optimizer", "averaged", "last_taken"):
        assert same(first[name], second[name]), name
    metrics, others = (json.loads((folder / "metrics.json").read_text()) for folder in (one, two))
    for name in ("share", "oracle_error", "top1_error", "members"):
        assert metrics[name] == pytest.approx(others[name], abs=1e-3), name
    for name in ("assigned", "counts", "flags"):
        assert metrics.get(name) == others.get(name), name
    losses, other_losses = (
        [float(row["loss"]) for row in csv.DictReader((folder / "log.csv").read_text().splitlines())]
        for folder in (one, two)
    )
    assert losses == pytest.approx(other_losses, abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        SPARSE | {"augment": "flip,crop"},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                {"warmup": 1},
                SPARSE | {"k": 2, "optimizer": "adamw", "learning_rate": 0.003, "ema": 0.9, "accumulate": 2},
                {"branch": 1, "sample_others": 0.5, "branch_groups": "confusion"},
                {"method": "smcl"},
                {"method": "mcl"},
                {"method": "ie", "patience": 1},
            )
        ),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_two_processes_give_the_weights_of_one_to_the_bit(options, tmp_path):
    for processes in (1, 2):
        run(tmp_path / str(processes), processes, {"method": "amcl"} | options)
    check(tmp_path / "1", tmp_path / "2")
    everything, first, second = (
        json.loads((tmp_path / path).read_text()) for path in ("1/reads-0.json", "2/reads-0.json", "2/reads-1.json")
    )
    for epoch, count in everything.items():
        if "sample_others" not in options or (epoch == "1" and "branch" not in options):  # the warm-up
            assert first[epoch] == second[epoch] == count
    if options.get("sample_others") == 0.1 and "k" not in options:
        # Of three members, the first process has two. A process reads the examples of its members and few others.
        assert second["3"] < 0.7 * everything["3"]
        assert first["3"] + second["3"] < 1.4 * everything["3"]


@pytest.mark.slow
def test_perceptrons_that_are_computed_together_are_rounded_differently(tmp_path):
    """In one process, the warm-up is one batched product. Each process has a part of the rows of all weights."""
    for processes in (1, 2):
        run(tmp_path / str(processes), processes, SPARSE | {"method": "amcl", "network": "mlp", "momentum": 0.5})
    one, two = (load_file(tmp_path / str(processes) / "model.safetensors") for processes in (1, 2))
    assert one["memory.flags"].equal(two["memory.flags"])
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.slow
def test_features_of_a_shared_trunk_are_standardised_with_the_whole_batch(tmp_path):
    """The heads of this process see a part of the batch, but the trunk's statistics are those of all of it."""
    options = {"network": "efficientnet_lite0", "weights": "none", "image_size": 32, "hidden": 4, "width": None}
    options |= {"exchange": "weight_sharing", "data_limit": 100, "optimizer": "sgd", "momentum": 0.5}
    for processes in (1, 2):
        run(tmp_path / str(processes), processes, SPARSE | {"method": "amcl"} | options)
    one, two = (load_file(tmp_path / str(processes) / "model.safetensors") for processes in (1, 2))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 3])
def test_stopped_in_two_processes_and_continued_in_one(epoch, tmp_path):
    options = SPARSE | {"method": "amcl", "batch_size": 32}
    run(tmp_path / "whole", 1, options)
    run(tmp_path / "stopped", 2, options, stop=9 * (epoch - 1) + 4)
    assert not (tmp_path / "stopped" / "metrics.json").exists()
    run(tmp_path / "stopped", 1, options, stop=-1)
    check(tmp_path / "whole", tmp_path / "stopped")


def test_every_member_has_one_process():
    parallel = [MemberParallel(5, rank=rank, world=3, device="cpu") for rank in range(3)]
    assert torch.stack([one.own for one in parallel]).sum(0).tolist() == [1] * 5
    taken = torch.ones(5, 4)
    parts = [one.of_own(Sample.complete(taken)) for one in parallel]
    assert torch.equal(sum(part.weight for part in parts), taken)
    for one, part in zip(parallel, parts, strict=True):
        assert [rows is None for rows in part.parts] == one.own.tolist()


@pytest.mark.parametrize("network", ["simple_cnn", "mlp"])
def test_members_without_examples_are_not_computed(network):
    """Batch statistics of no example would fail, and those of other processes' members must not change."""
    method = methods.build("amcl", members=3, classes=4)
    options = {"channels": 1} if network == "simple_cnn" else {"inputs": 64}
    ensemble = Ensemble.build(method, network, width=4, exchange="none", **options).train()
    x = torch.randn(6, 1, 8, 8)
    before = {name: value.clone() for name, value in ensemble.state_dict().items() if isinstance(value, torch.Tensor)}
    none = torch.empty(0, dtype=torch.int64)
    complete = copy.deepcopy(ensemble)(x).logits
    logits = ensemble(x, [none, None, torch.tensor([1, 4])]).logits
    torch.testing.assert_close(logits[1], complete[1])
    assert not logits[0].any()
    assert logits[2].any(1)[[0, 2, 3, 5]].tolist() == [False] * 4
    assert logits[2].any()
    for name, value in ensemble.state_dict().items():
        if name.startswith(("stems.0.", "bodies.0.")):
            assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("options", "recipe", "processes", "message"),
    [
        ({"exchange": "none"}, {}, 4, "3 members for 4 processes"),
        ({"preset": "light"}, {}, 2, "share no trained weights"),
        ({"exchange": "weight_sharing"}, {}, 2, "share no trained weights"),
        ({"exchange": "none"}, {"clip": 1.0}, 2, "does not support clip"),
    ],
)
def test_members_that_are_not_independent(options, recipe, processes, message):
    ensemble = Ensemble.build("amcl", "simple_cnn", members=3, width=4, **options)
    with pytest.raises(UsageError, match=message):
        check_members(ensemble, Recipe(**recipe), Machine(strategy="members", devices=processes))
    check_members(ensemble, Recipe(**recipe), Machine(strategy="members"))  # of one process, there is nothing to say


def test_a_gate_reads_all_members():
    ensemble = Ensemble.build("one", "simple_cnn", members=3, width=4, exchange="none")
    with pytest.raises(UsageError, match="share no trained weights"):
        check_members(ensemble, Recipe(), Machine(strategy="members", devices=2))


def test_a_frozen_trunk_is_no_exchange():
    ensemble = Ensemble.build("amcl", "simple_cnn", members=3, width=4, exchange="weight_sharing")
    ensemble.stems.requires_grad_(False)
    check_members(ensemble, Recipe(), Machine(strategy="members", devices=2))


@pytest.mark.parametrize("option", ["lean", "compile"])
def test_what_needs_all_members(option):
    with pytest.raises(UsageError, match="Cannot combine the strategy members"):
        Machine(strategy="members", **{option: True})


def test_one_process_and_bad_input_on_the_command_line(tmp_path, capsys):
    line = f"train --data digits --network mlp --width 8 --epochs 1 --method ie --members 2 --out {tmp_path}/"
    assert cli.main(shlex.split(line + "one --strategy members")) == 0
    assert (tmp_path / "one" / "metrics.json").is_file()
    assert cli.main(shlex.split(line + "three --strategy members --devices 3 --accelerator cpu")) == 2
    assert "2 members for 3 processes" in capsys.readouterr().err
    with pytest.raises(UsageError, match="2 members for 3 processes"):
        fit("ie", "mlp", members=2, strategy="members", devices=3, accelerator="cpu", verbose=False)

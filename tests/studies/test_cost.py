"""What studies cost, counted; `python tests/studies/test_cost.py` writes the tables of docs/cluster.md anew."""

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torchmcl import cli, data, studies
from torchmcl.serialization.model_config import ModelConfig
from torchmcl.studies import cost, tables
from torchmcl.studies.scales import NAMES, scale
from torchmcl.studies.spec import Spec

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
MARKS = ("<!-- tables: written by tests/studies/test_cost.py -->\n", "<!-- end of tables -->\n")
RUN = {"network": "resnet18", "data": "cifar10", "members": 5, "epochs": 3, "data_validation": 0.0, "seed": 0}


def written():
    return "\n".join(tables.markdown(table) for table in (cost.studies_table(), cost.traffic_table()))


def parts():
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    inside, after = rest.split(MARKS[1])
    return before, inside, after


def test_tables_are_current():
    assert parts()[1] == written(), "docs/cluster.md is stale. Run: python tests/studies/test_cost.py"


def test_operations_are_those_of_the_page_of_networks():
    """555.42 M multiply-adds for an image; backward is twice that, but for the images' own gradient."""
    work = cost.work_of(Spec({**RUN, "method": "ie"}))
    first = 2 * 5 * 3 * 64 * 9 * 32 * 32
    assert work.forward == pytest.approx(2 * 5 * 555.42e6, rel=1e-5)
    assert work.step == 3 * work.forward - first
    assert work.parameters == 5 * 11_173_962
    whole = cost.operations(Spec({**RUN, "method": "ie"}))
    assert whole == 3 * 50_000 * work.step + 10_000 * work.forward
    held = cost.operations(Spec({**RUN, "method": "ie", "data_validation": 0.1}))
    assert held == 3 * (45_000 * work.step + 5_000 * work.forward) + 10_000 * work.forward


@pytest.mark.parametrize(
    ("method", "exchange", "preset"),
    [
        ("ie", "default", "default"),
        ("vmcl", "default", "default"),
        ("one", "default", "default"),
        ("cmcl", "default", "default"),
        ("amcl", "default", "default"),
        ("amcl", "default", "light"),
        ("amcl", "weight_sharing", "paper_count"),
    ],
)
def test_parts_add_up_to_what_is_built_and_trained(method, exchange, preset):
    names, shape, more = tuple(map(str, range(10))), (3, 32, 32), {"exchange": exchange, "preset": preset}
    options = {"width": 8, "channels": 3}
    _, ensemble = ModelConfig(method, 3, names, "resnet10", shape, "gcn", network_options=options, **more).build()
    with FlopCounterMode(display=False) as counter:
        output = ensemble(torch.zeros(2, *shape))
        forward = counter.get_total_flops()
        (output.logits.sum() + (0 if output.gate is None else output.gate.sum())).backward()
    work = cost.count(method, "resnet10", 3, 10, cost.DATA["cifar10"], exchange, preset, (("width", 8),))
    assert work.parameters == sum(p.numel() for p in ensemble.parameters())
    assert (2 * work.forward, 2 * work.step) == (forward, counter.get_total_flops())


@pytest.mark.parametrize(("exchange", "k", "rate"), [("none", 1, 0.25), ("none", 2, 0.1), ("feature_fusion", 1, 0.25)])
def test_sparse_training_costs_the_examples_that_members_see(exchange, k, rate):
    """One epoch of warm-up and nine with K + (M - K) r of M members; an exchange and its stems see all examples."""
    options = {**RUN, "network": "resnet10", "width": 8, "method": "amcl", "k": k, "exchange": exchange}
    options |= {"epochs": 10, "warmup": 1}
    dense, sparse = (cost.work_of(Spec({**options, "sample_others": part})) for part in (1.0, rate))
    _, stem, body, _ = cost.one_member("resnet10", 11, "exchange", (3, 32, 32), (("width", 8),))
    sampled = body.step + (stem.step if exchange == "none" else 0)
    others = dense.step - 5 * sampled
    assert others == 0 if exchange == "none" else others > 0
    assert sparse.step == pytest.approx(others + sampled * (5 + 9 * (k + (5 - k) * rate)) / 10, abs=1)
    assert (sparse.parameters, sparse.forward) == (dense.parameters, dense.forward)


def test_the_unit_of_cost_can_be_another_network():
    small, wide = (Spec({**RUN, "method": "ie", "members": 1, "width": width}) for width in (8, 16))
    assert cost.in_networks(wide) == 1
    assert cost.in_networks(wide, small) == cost.work_of(wide).step / cost.work_of(small).step > 3


def test_two_classes_of_ten_are_a_fifth_of_the_images():
    spec = Spec({**RUN, "method": "ie", "data_classes": "dog,airplane"})
    work = cost.work_of(spec)
    assert cost.operations(spec) == 3 * 10_000 * work.step + 2_000 * work.forward


@pytest.mark.parametrize("name", NAMES)
def test_every_run_counts_once(name):
    found = cost.runs(studies.NAMES, name)
    once = [spec.hash for specs in found.values() for spec in specs]
    every = {spec.hash for study in studies.NAMES for spec in studies.load(study).runs(scale(name, study))}
    assert sorted(once) == sorted(every)


def test_no_machine_waits_while_runs_are_left():
    lengths = [5.0, 4, 3, 3, 3, 2, 1]
    assert cost.makespan(lengths, 1) == sum(lengths)
    assert cost.makespan(lengths, 7) == cost.makespan(lengths, 100) == max(lengths)
    assert cost.makespan(lengths, 3) == 7


@pytest.mark.parametrize("name", ["digits", "digits-masks", "cifar10", "icoseg"])
def test_data_sets_are_as_they_are_read(name, request):
    if not name.startswith("digits"):
        request.getfixturevalue("real")
    read, said = data.load(name), cost.DATA[name]
    assert tuple(read.train.images.shape[1:]) == said.shape
    assert (len(read.train), len(read.test)) == (said.train, said.test)
    assert (len(read.train.classes), len(read.train.groups or ())) == (said.classes, said.groups)


def test_frozen_weights_are_not_sent():
    table = cost.traffic_table([("efficientnet_lite0", "cifar10")], gpus=(1, 8))
    heads = 5 * (256 * (1280 + 1) + 11 * (256 + 1))  # per member, a hidden layer and a layer with the auxiliary class
    (row,) = table.rows
    assert row[2:5] == (f"{heads:,}", "0.0", f"{cost.traffic(heads, 8) / 1e6:,.1f}")
    assert "0.0 +" not in " ".join(row[-2:])


def test_the_command(capsys):
    assert cli.main(["study", "cost", "ablation", "exchange", "--scale", "smoke", "--gpus", "2"]) == 0
    printed = capsys.readouterr().out
    assert "Cost of studies, smoke" in printed
    assert "2 GPUs" in printed


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ablatio", "Did you mean 'ablation'?"),
        ("--tflops 0", "Expected tflops > 0"),
        ("--gpus 0", "gpus >= 1"),
        ("toy_regression --scale paper", "has no runs at the scale paper. See: torchmcl study ls"),
    ],
)
def test_bad_input_is_one_line(line, problem, capsys):
    assert cli.main(["study", "cost", "--scale", "smoke", *line.split()]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1


if __name__ == "__main__":
    before, _, after = parts()
    PAGE.write_text(MARKS[0].join((before, written() + MARKS[1] + after)), encoding="utf-8")

"""One configuration for every way to ask for a training."""

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from torchmcl import UsageError, cli, data, fit, methods, networks
from torchmcl.serialization.data_config import DataConfig
from torchmcl.training.config import FrozenDict, MethodConfig, NetworkConfig, TrainConfig, group_options
from torchmcl.training.machine import Machine
from torchmcl.training.recipe import Recipe

TINY = {"network": "mlp", "data": "digits", "members": 2, "width": 8, "data_limit": 200, "verbose": False}


@given(
    st.sampled_from(methods.names()),
    st.sampled_from(networks.NAMES),
    st.sampled_from(["digits", "cifar10", "cifar100", "tiny-imagenet", "icoseg", "folder:mine"]),
    st.sampled_from([None, 1, 2, 12, 100]),
)
def test_a_resolved_configuration_is_a_fixed_point(method, network, name, epochs):
    config = TrainConfig.of(method, network, name, epochs=epochs)
    resolved = config.resolved()
    assert TrainConfig.of(**resolved.flat()).resolved() == resolved == resolved.resolved()
    assert json.loads(json.dumps(resolved.flat())) == yaml.safe_load(yaml.safe_dump(resolved.flat()))
    assert TrainConfig.of(**resolved.identity()).identity() == config.identity()


def test_every_default_is_spelled_out():
    flat = TrainConfig.of("amcl", "simple_cnn", "cifar10").resolved().flat()
    expected = {*methods.options("amcl"), "width", *(f"data_{one.name}" for one in dataclasses.fields(DataConfig))}
    expected |= {one.name for kind in (Recipe, Machine) for one in dataclasses.fields(kind)}
    assert expected - {"groups"} <= flat.keys()  # groups follow from the data
    assert (flat["epochs"], flat["drop_every"], flat["warmup"], flat["exchange"]) == (100, 25, 5, "feature_fusion")


def test_a_configuration_cannot_be_changed():
    config = TrainConfig.of("amcl", k=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    with pytest.raises(TypeError, match="cannot be changed"):
        config.method.options["k"] = 3
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), TrainConfig.of("amcl", k=2)):
        assert other == config
        assert hash(other) == hash(config)
    method = methods.build("amcl", k=2)
    with pytest.raises(TypeError, match="cannot be changed"):
        method.options["k"] = 3
    assert pickle.loads(pickle.dumps(method)) == copy.deepcopy(method) == method
    assert len({method, methods.build("amcl", k=2), methods.build("amcl", k=3)}) == 2
    assert FrozenDict(a=1) | {"b": 2} == {"a": 1, "b": 2}


def test_two_ways_to_say_the_same_are_the_same():
    one = TrainConfig.of("amcl", "mlp", "digits", epochs=40, seed=3)
    two = TrainConfig.of(methods.build("amcl", warmup="5%"), "mlp", data.load("digits", validation=0.1, seed=3), seed=3)
    two = dataclasses.replace(two, recipe=Recipe(epochs=40))
    assert one.identity() == two.identity()
    assert one.identity() == TrainConfig.of("amcl", "mlp", "digits", epochs=np.int64(40), seed=3, devices=2).identity()
    assert (
        one.identity() != TrainConfig.of("amcl", "mlp", "digits", epochs=40, seed=3, precision="bf16-mixed").identity()
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quiet": True}, "Unknown option quiet .* Use verbose=False."),
        ({"bete": 1}, "Did you mean beta?"),
        ({"warmup": 0}, "Expected warmup >= 1, got 0"),
        ({"warmup": 30}, "warmup=30 is too long for epochs=30. Lower warmup"),
        ({"warmup": "100%"}, "a share such as '5%', got '100%'"),
        ({"warmup": 0.05}, "a share such as '5%', got 0.05"),
        ({"members": "five"}, "an integer for members"),
        ({"seed": -1}, "seed >= 0"),
        ({"data_seed": -1}, "seed >= 0, got -1"),
        ({"unit": "row"}, "Unknown unit .* image, pixel"),
        ({"cut": 2}, "cut applies only to custom networks"),
        ({"method": "amlc"}, "Did you mean 'amcl'"),
        ({"network": "mpl"}, "Did you mean 'mlp'"),
    ],
)
def test_what_is_wrong_is_said_where_it_is_created(options, says):
    with pytest.raises(UsageError, match=says):
        TrainConfig.of(**{"data": "digits", **options}).resolved()


def test_a_clash_is_refused_by_name():
    def clashing(members, classes, *, k=1, width=3):
        return methods.smcl(members, classes, k=k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(methods._FAMILY, "clashing", clashing)
        with pytest.raises(UsageError, match="width is defined by both the method clashing and the network"):
            group_options({}, "clashing", "mlp")
        patch.setitem(methods._FAMILY, "taking", lambda members, classes, *, k=1, seed=3: None)
        with pytest.raises(UsageError, match="seed is defined by both the method taking and the training"):
            group_options({}, "taking", "mlp")
    for method in methods.names():
        for network in networks.NAMES:
            assert group_options({}, method, network)["method"] == {}


def test_a_runs_config_repeats_it(tmp_path, capsys):
    """`--config` of a run's own file, and flags on top of it."""
    line = "train --method amcl --network mlp --data digits --width 8 --members 2 --epochs 3 --warmup 40% --beta 0.2 "
    line += "--data.limit 200 --data.seed 5 --seed 1 --quiet --out "
    assert cli.main([*line.split(), str(tmp_path / "one")]) == 0
    config = yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())
    assert (config["warmup"], config["beta"], config["data_seed"], config["clip"]) == (1, 0.2, 5, None)
    again = ["train", "--config", str(tmp_path / "one" / "config.yaml"), "--quiet", "--out"]
    assert cli.main([*again, str(tmp_path / "two")]) == 0
    assert (tmp_path / "one" / "config.yaml").read_text() == (tmp_path / "two" / "config.yaml").read_text()
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    assert cli.main([*again, str(tmp_path / "three"), "--beta", "0.3"]) == 0
    assert yaml.safe_load((tmp_path / "three" / "config.yaml").read_text())["beta"] == 0.3
    assert (tmp_path / "three" / "model.safetensors").read_bytes() != one


def test_objects_are_recorded_as_such(tmp_path, capsys):
    import torch

    def network(outputs):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))

    options = {"members": 2, "epochs": 1, "data_limit": 200, "verbose": False}
    fit("ie", network, "digits", out=tmp_path / "run", **options)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["network"] == "own:network"
    (tmp_path / "run" / "metrics.json").unlink()
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "Unknown network 'own:network'" in capsys.readouterr().err
    fit("ie", network, "digits", out=tmp_path / "run", resume=True, **options)


def test_parts_are_checked_where_they_are_created():
    with pytest.raises(UsageError, match="unit"):
        MethodConfig("amcl", 2, "row")
    with pytest.raises(UsageError, match="cut"):
        NetworkConfig("mlp", cut=2)
    assert DataConfig(classes=["a", "b"]) == DataConfig(classes="a,b")
    assert DataConfig(classes=["a,b", "c"]).classes == ("a,b", "c")
    assert MethodConfig.of("cmcl", 3, "image", {}).resolved("digits", 10).options["k"] == 3


def test_masks_have_a_default_network_of_their_own(tmp_path):
    masks = data.load("digits-masks", limit=40)
    np.savez(tmp_path / "masks.npz", x=masks.train.images.numpy(), y=masks.train.target.numpy())
    for given_data in ("icoseg", "digits-masks", "segmentation-folder:photos", f"npz:{tmp_path}/masks.npz", masks):
        assert TrainConfig.of(data=given_data).network.name == "fcn"
    assert TrainConfig.of(data="digits").network.name == "simple_cnn"


def per_image(outputs):
    import torch

    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))


@pytest.mark.parametrize(
    ("network", "data_set", "message"),
    [
        ("simple_cnn", "digits-masks", "The network simple_cnn predicts one class per image, but the data has masks"),
        ("fcn", "digits", "The network fcn predicts a mask, but the data has no masks"),
        (per_image, "digits-masks", "The network predicts one class per image, but the data has masks"),
    ],
)
def test_a_network_whose_outputs_do_not_match_the_targets_is_rejected(network, data_set, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        fit("ie", network, data_set, members=2, epochs=1, data_limit=60, verbose=False, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

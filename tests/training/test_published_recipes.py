"""The recipes of official code, and the options that they need."""

import json

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from torchmcl import State, UsageError, cli, data, fit, methods
from torchmcl.data import preprocess
from torchmcl.ensemble import Ensemble
from torchmcl.inference.export import export
from torchmcl.inference.predictor import Specialists
from torchmcl.studies.spec import Spec
from torchmcl.training import Recipe
from torchmcl.training.config import TrainConfig
from torchmcl.training.fitting import prepare
from torchmcl.training.published_recipes import OPTIONS

SMALL = {"members": 2, "epochs": 2, "width": 4, "data_limit": 200, "verbose": False}
TRAINED = {"mcl_kd": {"initial_weights": "runs/ie"}}


def published(method, network="simple_cnn", name="cifar10", **options):
    config = TrainConfig.of(method, network, name, recipe="published", **TRAINED.get(method, {}), **options)
    return config.resolved()


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("name", ["cifar10", "digits"])
def test_the_resolved_options_are_stored_and_not_the_recipe(method, name):
    config = published(method, name=name)
    flat = config.flat()
    assert "recipe" not in flat
    assert json.loads(json.dumps(flat)) == yaml.safe_load(yaml.safe_dump(flat)) == flat
    assert TrainConfig.of(**flat).identity() == config.identity()
    assert Spec({"method": method, "data": name, "recipe": "published", **TRAINED.get(method, {})}).hash
    for option, value in OPTIONS[method].items():
        if not option.startswith("data_") and option not in ("drop_at", "rampup"):
            assert flat[option] == value
        if option.startswith("data_"):
            assert (flat[option] == value) == (name == "cifar10")


def test_amcl_and_runs_without_a_recipe_are_unchanged():
    assert published("amcl").identity() == TrainConfig.of("amcl", "simple_cnn", "cifar10").identity()
    new = {"weight_decay_on", "drop_at", "norm_eps", "initial_weights", "data_preprocess", "class_mean", "first_epoch"}
    for method in methods.names():
        assert not new & TrainConfig.of(method, "simple_cnn", "cifar10").identity().keys()


def test_given_options_win():
    flat = published("cmcl", beta=1.0, norm_eps=0.01, data_preprocess="gcn", weight_decay_on="all").flat()
    assert (flat["beta"], flat["norm_eps"], flat["data_preprocess"], flat["weight_decay_on"]) == (1, 0.01, "gcn", "all")
    assert flat["stochastic"] is True
    method = methods.build("cmcl", stochastic=False)
    config = TrainConfig.of(method, "simple_cnn", "cifar10", recipe="published")
    assert (config.method.options["stochastic"], config.network.norm_eps) == (False, 1e-3)
    assert TrainConfig.of("annealed_mcl", recipe="published").method.options["decay"] == 0.95
    assert published("cmcl", "efficientnet_lite0").source.preprocess is None


@pytest.mark.parametrize("name", ["bam", "cbam"])
def test_attention_modules_are_recipes_for_every_method(name):
    for method in ("smcl", "cmcl"):
        network = TrainConfig.of(method, "simple_cnn", "cifar10", recipe=name).network
        assert (network.exchange, network.preset, network.norm_eps) == ("feature_fusion", name, None)
        given = {"exchange": "feature_fusion", "preset": name}
        same = TrainConfig.of(method, "simple_cnn", "cifar10", **given)
        assert TrainConfig.of(method, "simple_cnn", "cifar10", recipe=name).identity() == same.identity()
    both = TrainConfig.of("cmcl", "simple_cnn", "cifar10", recipe=f"published+{name}")
    assert (both.network.preset, both.network.norm_eps) == (name, 1e-3)
    assert TrainConfig.of("cmcl", "simple_cnn", "cifar10", recipe=name, preset="light").network.preset == "light"
    assert TrainConfig.of("cmcl", "simple_cnn", "cifar10", recipe=name, exchange="none").network.exchange == "none"


def test_the_sparse_recipe():
    for network, exchange in (("simple_cnn", "none"), ("efficientnet_lite0", "default")):
        config = TrainConfig.of("amcl", network, "cifar10", recipe="sparse")
        assert (config.network.exchange, config.recipe.sample_others) == (exchange, 0.25)
        assert config.recipe.sample_correction == "weight"
    assert (
        TrainConfig.of("amcl", "simple_cnn", "cifar10", recipe="sparse", sample_others=0.1).recipe.sample_others == 0.1
    )
    with pytest.raises(UsageError, match="does not support sample_others"):
        fit("smcl", "mlp", members=2, recipe="sparse", verbose=False)


def test_what_is_wrong_is_said():
    with pytest.raises(UsageError) as problem:
        published("smcl")
    assert str(problem.value) == (
        "The method smcl has no published recipe. Methods with one: amcl, cmcl, mcl_kd, one, annealed."
    )
    with pytest.raises(UsageError, match=r"Unknown recipe 'publised'.*published"):
        TrainConfig.of("cmcl", recipe="publised")
    with pytest.raises(UsageError, match=r"starts from trained members. Pass initial_weights=RUN"):
        TrainConfig.of("mcl_kd", recipe="published")
    assert TrainConfig.of("mcl_kd", recipe="published", pretrain=3).method.options["pretrain"] == 3
    modules = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]
    assert TrainConfig.of("mcl_kd", modules, recipe="published").method.options["pretrain"] == 0
    for wrong in ({"norm_eps": 0.0}, {"weight_decay_on": "biases"}, {"drop_at": "5,x"}, {"drop_at": "150%"}):
        with pytest.raises(UsageError, match="Expected"):
            TrainConfig.of("one", **wrong)
    with pytest.raises(UsageError, match="Expected first_epoch to be 0 or 1, got 2"):
        TrainConfig.of("one", first_epoch=2)


def test_one_follows_its_schedule():
    config = published("one")
    recipe, options = config.recipe, config.method.options
    assert (recipe.epochs, recipe.drop_at, options["rampup"], recipe.augment) == (300, "150,225", 80, "crop,flip")
    rates = [recipe.rate(epoch) for epoch in (1, 150, 151, 225, 226, 300)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    group = recipe.build([nn.Parameter(torch.zeros(1))]).param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, False, 1e-4)
    assert published("one", epochs=30).recipe.drop_at == "15,23"
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]))
    expected = (images / 255 - mean) / std
    assert preprocess.get(config.source.preprocess)(images).allclose(expected, atol=1e-5)


def test_annealed_is_hard_from_epoch_136_on():
    objective = published("annealed", epochs=200).method.build(10).new_objective()
    temperatures = [objective.assign.temperature(State(epoch, 200)) for epoch in (1, 2, 135, 136)]
    assert temperatures == pytest.approx([0.5, 0.475, 0.5 * 0.95**134, 0])


@pytest.mark.parametrize("network", ["simple_cnn", "mlp"])
def test_only_weights_of_convolutions_and_linear_layers_decay(network):
    shape = {"inputs": 4} if network == "mlp" else {"channels": 1}
    ensemble = Ensemble.build("amcl", network, members=2, classes=3, width=4, **shape)
    decayed, others = Recipe(weight_decay_on="weights").groups(ensemble)
    names = {weight: name for name, weight in ensemble.named_parameters()}
    optimizer = Recipe(weight_decay_on="weights").build([decayed, others])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [5e-4, 0]
    assert {*decayed["params"], *others["params"]} == {*ensemble.parameters()}
    norms = {
        id(w) for m in ensemble.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for w in m.parameters()
    }
    for weight in decayed["params"]:
        assert names[weight].endswith("weight")
        assert id(weight) not in norms
    assert all(names[weight].endswith("bias") or id(weight) in norms for weight in others["params"])
    assert len(Recipe().groups(ensemble)) == 1


def test_cmcl_whitens_and_keeps_it(tmp_path):
    """ZCA and the epsilon are parts of the model: a saved, a resumed and an exported one give the same answers."""
    options = {**SMALL, "data_preprocess": "scale+zca", "recipe": "published"}
    trained = fit("cmcl", "simple_cnn", "digits", out=tmp_path / "run", **options)
    images = data.load("digits", limit=200, validation=0.1).train.images.float() / 255 * 2 - 1
    whitening = trained.ensemble.whitening
    assert np.abs(whitening.mean.numpy() - images.flatten(1).mean(0).numpy()).max() < 1e-6
    white = whitening(images).flatten(1)
    assert white.mean(0).abs().max() < 1e-5
    assert torch.allclose(whitening.matrix, whitening.matrix.T)
    assert (trained.model_config.preprocess, trained.model_config.whiten) == ("scale", True)
    norms = [part for part in trained.ensemble.modules() if isinstance(part, nn.BatchNorm2d)]
    assert {part.eps for part in norms} == {1e-3}
    test = data.load("digits").test.images[:20]
    loaded = Specialists.load(tmp_path / "run")
    assert loaded.predict(test).probabilities.equal(trained.predict(test).probabilities)
    assert {part.eps for part in loaded.ensemble.modules() if isinstance(part, nn.BatchNorm2d)} == {1e-3}
    assert export(loaded, tmp_path / "model.pt2")["difference"] < 1e-5
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0
    assert not torch.allclose(white, images.flatten(1), atol=0.1)


def test_onnx_of_a_whitened_model(tmp_path):
    pytest.importorskip("onnxruntime")
    model = fit("ie", "mlp", "digits", data_preprocess="gcn+zca", **SMALL)
    assert export(model, tmp_path / "model.onnx")["difference"] < 1e-5


def test_whitened_members_one_at_a_time_learn_the_same():
    options = {**SMALL, "data_preprocess": "scale+zca"}
    one, two = (fit("ie", "simple_cnn", "digits", lean=lean, **options) for lean in (False, True))
    for name, weight in one.ensemble.state_dict().items():
        assert torch.allclose(weight, two.ensemble.state_dict()[name], atol=1e-4), name


def test_mcl_kd_starts_from_trained_members(tmp_path):
    trained = fit("ie", "mlp", "digits", out=tmp_path / "ie", **SMALL)
    options = {**SMALL, "recipe": "published", "initial_weights": tmp_path / "ie"}
    config = TrainConfig.of("mcl_kd", "mlp", "digits", **{k: v for k, v in options.items() if k != "verbose"})
    job = prepare(config)
    for name, weight in trained.ensemble.state_dict().items():
        assert job.ensemble.state_dict()[name].equal(weight)
    assert job.method.new_objective().then.leave.by == 50 / 10
    fit("mcl_kd", "mlp", "digits", out=tmp_path / "kd", **options)
    stored = yaml.safe_load((tmp_path / "kd" / "config.yaml").read_text())
    assert (stored["pretrain"], stored["initial_weights"]) == (0, str(tmp_path / "ie"))
    with pytest.raises(UsageError, match="do not match the model"):
        fit("mcl_kd", "mlp", "digits", **{**options, "width": 8})
    with pytest.raises(UsageError, match=r"There is no model.safetensors"):
        fit("mcl_kd", "mlp", "digits", **{**options, "initial_weights": tmp_path / "nowhere"})


def test_from_the_command_line(tmp_path, capsys):
    line = "train --method one --network simple_cnn --data digits --recipe published --members 2 --width 4 --epochs 2"
    line = f"{line} --data.limit 200 --quiet --out {tmp_path / 'run'}"
    assert cli.main(line.split()) == 0
    stored = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (stored["optimizer"], stored["first_epoch"], stored["drop_at"]) == ("heavy_ball", 0, "1,1")
    assert "recipe" not in stored
    assert cli.main(["train", "--config", str(tmp_path / "run" / "config.yaml"), "--out", str(tmp_path / "two")]) == 0
    both = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "two")]
    assert both[0] == both[1]
    assert cli.main(["train", "--method", "kdcl", "--recipe", "published", "--out", str(tmp_path / "three")]) == 2
    assert "The method kdcl has no published recipe." in capsys.readouterr().err

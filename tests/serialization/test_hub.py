"""Sharing, against a folder in place of the hub: the same calls, the same files, the same answers."""

import re
import shutil
import sys
from dataclasses import replace

import pytest
import torch
import yaml

from torchmcl import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import checksum, hub
from torchmcl.structures.rejection import Rejection
from torchmcl.training import fit


class Folder:
    """A hub that is a folder: the two calls of huggingface_hub's HfApi that are used."""

    def __init__(self, root):
        self.root = root

    def create_repo(self, repo_id, *, private, exist_ok):
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)
        return f"file://{self.root / repo_id}"


def test_shared_and_fetched(digits_run, digits_test, tmp_path):
    specialists = Specialists.load(digits_run)
    specialists.calibrate((digits_test.images, digits_test.target), coverage=0.9)
    address = specialists.push_to_hub("me/digits", api=Folder(tmp_path))
    shared = tmp_path / "me" / "digits"
    assert address == f"file://{shared}"
    assert sorted(path.name for path in shared.iterdir()) == [
        "README.md",
        "config.yaml",
        "metrics.json",
        "model.safetensors",
    ]
    fetched = Specialists.from_pretrained(shared)
    torch.testing.assert_close(
        vars(fetched.predict(digits_test)), vars(specialists.predict(digits_test)), rtol=0, atol=0
    )
    assert fetched.model_config == specialists.model_config
    assert fetched.metrics == specialists.metrics == checksum.read(digits_run / "metrics.json")
    specialists.push_to_hub("me/digits", api=Folder(tmp_path))  # again, over it
    assert Specialists.from_pretrained(str(shared), device="cpu").classes == specialists.classes


def test_the_card_tells_the_figures(digits_run, tmp_path):
    specialists = Specialists.load(digits_run)
    specialists.push_to_hub("me/digits", api=Folder(tmp_path))
    card = (tmp_path / "me" / "digits" / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front)["pipeline_tag"] == "image-classification"
    figures = checksum.read(digits_run / "metrics.json")
    for name in ("top1_error", "oracle_error", "nll", "brier", "ece"):
        assert f"| {hub.CARD_METRICS[name]} | {figures[name]} |" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {"x": torch.zeros(1, 1, 8, 8, dtype=torch.uint8)}
    exec(code.replace("me/digits", str(tmp_path / "me" / "digits")), names)
    assert names["answer"].label.shape == (1,)


@pytest.mark.parametrize("claimed", [True, False])
def test_the_card_states_both_thresholds(claimed, digits_run):
    rule = Rejection(threshold=0.6, claim_threshold=0.25 if claimed else None, coverage=0.9, error=0.01)
    card = hub.card("me/x", replace(Specialists.load(digits_run).model_config, rejection=rule), {})
    claim = " and a claim of at least 0.2500" if claimed else ""
    assert f"with a confidence of at least 0.6000{claim} at temperature 1: 90.0 %" in card


def test_a_model_without_figures_says_none(tmp_path):
    specialists = fit("ie", "mlp", "digits", members=2, epochs=1, width=4, verbose=False)
    assert specialists.metrics["examples"] == 359
    specialists.save(tmp_path / "saved")
    Specialists.load(tmp_path / "saved").push_to_hub("me/plain", api=Folder(tmp_path))
    assert "metric" not in (tmp_path / "me" / "plain" / "README.md").read_text()
    assert not (tmp_path / "me" / "plain" / "metrics.json").exists()


def test_names_that_mean_something_elsewhere():
    from torchmcl.serialization.model_config import ModelConfig

    strange = ModelConfig(None, 2, ("a: b", "yes", "#1"), None, (4,), "none", "float32")
    front = yaml.safe_load(hub.card("me/x", strange, {}).split("---\n")[1])
    assert front["tags"][0] == "own-method"
    assert front["pipeline_tag"] == "tabular-classification"


@pytest.mark.parametrize("content", ["{", "[]", "\xff"])
def test_figures_that_are_none(content, digits_run, tmp_path):
    Specialists.load(digits_run).save(tmp_path)
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(UsageError, match=r"Cannot read .*metrics.json: "):
        Specialists.from_pretrained(tmp_path)


def test_without_the_library(digits_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r"pip install 'torchmcl\[hub\]'"):
        Specialists.from_pretrained("me/none")
    with pytest.raises(UsageError, match=r"pip install 'torchmcl\[hub\]'"):
        Specialists.load(digits_run).push_to_hub("me/none")


def test_only_what_a_model_consists_of_is_asked_for(digits_run, monkeypatch):
    asked = {}

    class Library:
        @staticmethod
        def snapshot_download(repo, *, revision, allow_patterns):
            asked.update(repo=repo, revision=revision, patterns=allow_patterns)
            if repo == "me/none":
                raise OSError("404\nnot found")
            return str(digits_run)

    monkeypatch.setattr(hub, "_library", lambda: Library)
    assert Specialists.from_pretrained("me/digits", revision="v1").classes == tuple("0123456789")
    assert asked == {
        "repo": "me/digits",
        "revision": "v1",
        "patterns": ["model.safetensors", "config.yaml", "metrics.json"],
    }
    with pytest.raises(UsageError, match="me/none is neither a folder nor a model on the hub: 404 not found"):
        Specialists.from_pretrained("me/none")

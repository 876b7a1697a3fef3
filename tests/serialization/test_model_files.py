"""Files that are not what was written: one clear error each, and nothing executes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from torchmcl import Ensemble, UsageError, networks
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import model_files
from torchmcl.training import fit


@pytest.fixture
def saved(digits_run, tmp_path) -> Path:
    Specialists.load(digits_run).save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def run(digits_run, tmp_path) -> Path:
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


def refused(folder, match):
    with pytest.raises(UsageError, match=match) as problem:
        Specialists.load(folder)
    assert len(str(problem.value).splitlines()) == 1


def rewritten(folder, change):
    """Write the model file anew with something changed in what it says of itself."""
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["torchmcl"])
    change(about)
    save_file(load_file(path), path, metadata={"torchmcl": json.dumps(about)})


@pytest.mark.parametrize("at", [-1, -1000])
def test_a_tampered_weight(at, saved):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    refused(saved, "checksum mismatch")


def test_a_tampered_class_name(saved):
    rewritten(saved, lambda about: about.update(classes=["x", *about["classes"][1:]]))
    refused(saved, "checksum mismatch")


def test_a_missing_checksum(saved):
    rewritten(saved, lambda about: about.pop("sha256"))
    refused(saved, "checksum mismatch")


def test_weights_of_another_shape(saved):
    tensors = load_file(saved / "model.safetensors")
    from torchmcl.serialization import model_files

    model_config, _ = model_files.read(saved)
    name = next(name for name in tensors if name.endswith("weight"))
    tensors[name] = tensors[name][:1]
    model_files.write(saved, model_config, tensors)  # with a checksum that fits
    refused(saved, "The weights in .* do not match the model")


@pytest.mark.parametrize("version", [0, 4, None, "2"])
def test_a_wrong_version(version, saved):
    rewritten(saved, lambda about: about.update(version=version))
    refused(saved, f"version {version}, but only versions 1 to 3 are supported")


def test_the_first_version_is_still_read(run):
    expected = Specialists.load(run).predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))

    def earlier(about):
        about["version"] = 1
        for new in ("sha256", "dtype", "rejection"):
            del about[new]

    rewritten(run, earlier)
    found = Specialists.load(run).predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    torch.testing.assert_close(vars(found), vars(expected))


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"\xff" * 100, b"cos\nsystem\n(S'echo harm'\ntR."],
    ids=["empty", "zip", "ff", "pickle"],
)
def test_what_is_no_model(content, saved):
    (saved / "model.safetensors").write_bytes(content)
    refused(saved, "Cannot read the model")


def test_safetensors_of_someone_else(saved):
    save_file({"weight": torch.zeros(3)}, saved / "model.safetensors")
    refused(saved, "Cannot read the model")


def test_a_cut_file(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    refused(saved, "Cannot read the model")


def test_a_folder_without_a_model(tmp_path):
    refused(tmp_path, "There is no model.safetensors in")


def test_a_foreign_config(saved, tmp_path):
    options = {"members": 3, "epochs": 4, "warmup": 3, "width": 8, "preset": "light", "k": 1}
    fit("amcl", "simple_cnn", "digits", verbose=False, **options).save(tmp_path / "two")
    shutil.copy(tmp_path / "two" / "config.yaml", saved)
    refused(saved, r"config.yaml in .* does not match model.safetensors: sha256 is")


def test_a_config_that_was_changed(saved):
    config = yaml.safe_load((saved / "config.yaml").read_text())
    (saved / "config.yaml").write_text(yaml.safe_dump({**config, "preprocess": "none"}))
    refused(saved, "preprocess is none, expected scale")


def test_a_foreign_config_of_a_run(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "members": 5}))
    refused(run, "members is 5, expected 3")


def test_a_config_that_is_none(saved):
    (saved / "config.yaml").write_text("!!python/object/apply:os.system ['echo harm']")
    refused(saved, "as YAML")


def test_a_model_needs_no_config(saved, digits_run):
    (saved / "config.yaml").unlink()
    assert Specialists.load(saved).model_config == Specialists.load(digits_run).model_config


def test_saving_over_a_saved_model_replaces_it(saved):
    other = fit("ie", "mlp", "digits", members=2, epochs=1, width=4, verbose=False)
    other.save(saved)
    assert Specialists.load(saved).model_config == other.model_config


def test_saving_into_the_run_of_another_is_refused(run, digits_run):
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match=r"does not match model\.safetensors"):
        fit("ie", "mlp", "digits", members=2, epochs=1, width=4, verbose=False).save(run)
    assert (run / "model.safetensors").read_bytes() == before
    Specialists.load(run).save(run)
    assert (run / "config.yaml").read_bytes() == (digits_run / "config.yaml").read_bytes()
    assert (run / "model.safetensors").read_bytes() == before


def test_a_model_of_an_earlier_version_whose_weights_have_the_names_of_members(tmp_path):
    model = fit("ie", "mlp", "digits", members=3, epochs=1, width=4, verbose=False)
    each = Ensemble([networks.build("mlp", 10, inputs=64, width=4) for _ in range(3)])
    each.load_state_dict(model.ensemble.state_dict())
    tensors = {f"ensemble.{name}": weight for name, weight in each.state_dict().items()}
    assert "ensemble.bodies.2.0.weight" in tensors
    model_files.write(tmp_path / "earlier", model.model_config, tensors)
    loaded = Specialists.load(tmp_path / "earlier").ensemble.state_dict()
    torch.testing.assert_close(loaded, model.ensemble.state_dict(), rtol=0, atol=0)
    tensors["ensemble.bodies.2.0.weight"] = torch.zeros(5)
    model_files.write(tmp_path / "other", model.model_config, tensors)
    refused(tmp_path / "other", "The weights in .* do not match the model")

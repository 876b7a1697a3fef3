"""Real payloads in everything that is loaded: each leaves a mark where it is trusted, and none does here."""

import json
import pickle
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from outcomes import ends_well
from payloads import YAML, harms, opcodes
from torchmcl import cli, data
from torchmcl.data import matlab
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import model_files
from torchmcl.studies import execute, records
from torchmcl.training import fit

HARMS, OPCODES = list(harms(Path("x"))), list(opcodes(Path("x")))
TINY = {"members": 2, "epochs": 1, "width": 4, "verbose": False}


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "mark"


@pytest.fixture
def run(digits_run, tmp_path):
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that is all but finished, with patience and so with a best state too."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    fit("ie", "mlp", "digits", out=folder, patience=1, **TINY)
    (folder / "metrics.json").unlink()
    return folder


def refused(call) -> None:
    assert ends_well(call) is None


@pytest.mark.parametrize("name", HARMS)
def test_the_payloads_are_real(mark, name):
    pickle.loads(pickle.dumps(harms(mark)[name]))
    assert mark.exists()


@pytest.mark.parametrize("name", OPCODES)
def test_the_opcodes_are_real(mark, name):
    pickle.loads(opcodes(mark)[name])
    assert mark.exists()


@pytest.mark.parametrize("name", YAML)
def test_the_yaml_is_real(mark, name):
    yaml.unsafe_load(YAML[name].format(mark=mark))
    assert mark.exists()


@pytest.mark.parametrize("name", [*HARMS, *OPCODES])
@pytest.mark.parametrize("how", ["zip", "legacy", "pickle", "best"])
def test_checkpoints(trained, tmp_path, mark, name, how):
    """A run that is continued: its last state, its best one, and what a study keeps of it."""
    run = shutil.copytree(trained, tmp_path / "run")
    path = run / "checkpoints" / ("best.pt" if how == "best" else "last.pt")
    if name in OPCODES:
        path.write_bytes(opcodes(mark)[name])
    elif how == "pickle":
        path.write_bytes(pickle.dumps({"format": 1, "at": harms(mark)[name]}))
    else:
        state = {"format": 1, "at": harms(mark)[name], "ensemble": harms(mark)[name]}
        torch.save(state, path, _use_new_zipfile_serialization=how != "legacy")
    kept = path.read_bytes()
    refused(lambda: fit("ie", "mlp", "digits", out=run, resume=True, patience=1, **TINY))
    assert not mark.exists()
    if how != "best":
        (run / "flow.npz").unlink()  # as of an earlier version, whose checkpoint alone has it
        refused(lambda: execute.store_assignment_history(run))
        assert not mark.exists()
    assert path.read_bytes() == kept  # refused, and left where it was


@pytest.mark.parametrize("name", [*HARMS, *OPCODES])
def test_cifar_pickles(tmp_path, mark, name):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file in ("data_batch_1", "test_batch", "batches.meta"):
        raw = opcodes(mark).get(name)
        content = {"data": harms(mark).get(name), "labels": [1], "label_names": harms(mark).get(name)}
        (folder / file).write_bytes(raw or pickle.dumps(content, 2))
    refused(lambda: data.load("cifar10", directory=str(tmp_path)))
    (folder / "batches.meta").unlink()
    refused(lambda: data.load("cifar10", directory=str(tmp_path)))
    assert not mark.exists()


@pytest.mark.parametrize("name", HARMS)
def test_npz_object_arrays(tmp_path, mark, name):
    path = tmp_path / "set.npz"
    harm = np.array([harms(mark)[name]] * 4, dtype=object)
    for arrays in ({"x": harm, "y": [0, 0, 1, 1]}, {"x": np.zeros((4, 2)), "y": harm}):
        np.savez(path, **arrays)
        refused(lambda: data.load(f"npz:{path}"))
    assert not mark.exists()
    with np.load(path, allow_pickle=True) as content:
        content["y"]
    assert mark.exists()


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 16, 17, 18])
def test_mat_objects_and_functions(tmp_path, kind):
    """Cells, structures, objects, function handles and opaque objects are never made; numbers beside them are read."""

    def element(type_: int, body: bytes) -> bytes:
        return struct.pack("<II", type_, len(body)) + body + bytes(-len(body) % 8)

    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack("<ii", 1, 1))
    harm = element(14, head + element(1, b"X") + element(1, b"@()system('touch mark')"))
    good = element(
        14,
        element(6, struct.pack("<II", 9, 0))
        + element(5, struct.pack("<ii", 1, 2))
        + element(1, b"y")
        + element(2, b"ab"),
    )
    (tmp_path / "train_32x32.mat").write_bytes(b"MATLAB 5.0".ljust(124) + b"\x00\x01IM" + harm + good)
    assert matlab.read_matlab(tmp_path / "train_32x32.mat", max_bytes=10**6).keys() == {"y"}
    refused(lambda: data.load("svhn", directory=str(tmp_path), parts=("train",)))


@pytest.mark.parametrize("name", YAML)
def test_yaml_of_a_run(run, mark, name, capsys):
    (run / "config.yaml").write_text(YAML[name].format(mark=mark))
    for call in (Specialists.load, Specialists.from_pretrained, model_files.read_config):
        refused(lambda call=call: call(run))
    new = run.parent / "new"
    for words in (
        ["train", "--config", str(run / "config.yaml"), "--out", str(new)],
        ["train", "--config", YAML[name].format(mark=mark), "--out", str(new)],
        ["train", "--resume", str(run)],
        ["evaluate", str(run)],
        ["calibrate", str(run), "--coverage", "0.9"],
        ["train", "--members", YAML[name].format(mark=mark), "--out", str(new)],
    ):
        assert cli.main(words) == 2
    assert "no error" not in capsys.readouterr().err
    assert not mark.exists()
    assert not new.exists()


@pytest.mark.parametrize("path", ["os.system", "builtins.exec", "subprocess.Popen", "evil.Evil"])
def test_a_config_that_names_a_class(tmp_path, mark, monkeypatch, path, capsys):
    """jsonargparse makes objects of what names a class_path, where an option's type allows it: here none does."""
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = tmp_path / "c.yaml"
    for option in ("method", "network", "data", "k", "out", "members", "optimizer"):
        config.write_text(f"{option}:\n  class_path: {path}\n  init_args: {{args: ['touch {mark}']}}\n")
        assert cli.main(["train", "--config", str(config), "--epochs", "0", "--out", str(tmp_path / "new")]) == 2
    assert "no error" not in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize("module", ["{folder}/evil.py", "evil"])
def test_a_config_that_asks_for_an_import(run, tmp_path, mark, monkeypatch, module):
    """--import is for the command line: what a file says of it is refused, or not looked at."""
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    config, asks = run / "config.yaml", f"import: {module.format(folder=tmp_path)}\n"
    config.write_text(config.read_text() + asks)
    new = ["--out", str(tmp_path / "new")]
    for words in (["--config", str(config), *new], ["--config", asks, *new], ["--resume", str(run)]):
        assert cli.main(["train", *words]) == 2
    for call in (Specialists.load, Specialists.from_pretrained, model_files.read_config):
        ends_well(lambda call=call: call(run))
    assert cli.main(["evaluate", str(run)]) in (0, 2)
    assert not mark.exists()
    assert not (tmp_path / "new").exists()


def test_a_hub_folder_with_more_in_it(digits_run, tmp_path, mark, monkeypatch):
    """Code and pickles that lie beside a model are not looked at, even where they lie first on the path."""
    shared = tmp_path / "shared"
    Specialists.load(digits_run).save(shared)
    code = f"open({str(mark)!r}, 'w').close()\n"
    for name in ("modeling.py", "__init__.py", "simple_cnn.py", "amcl.py", "conftest.py", "sitecustomize.py"):
        (shared / name).write_text(code)
    for name in ("pytorch_model.bin", "model.pt", "model.pkl", "optimizer.pt"):
        (shared / name).write_bytes(opcodes(mark)["REDUCE"])
    (shared / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Evil"}, "trust_remote_code": true}')
    monkeypatch.chdir(shared)
    Specialists.from_pretrained(shared).predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
    assert not mark.exists()


@pytest.mark.parametrize("name", [*HARMS, *OPCODES])
def test_a_model_that_is_a_pickle(run, mark, name):
    content = opcodes(mark).get(name) or pickle.dumps(harms(mark)[name])
    (run / "model.safetensors").write_bytes(content)
    refused(lambda: Specialists.load(run))
    torch.save(harms(mark).get(name), run / "model.safetensors")
    refused(lambda: Specialists.load(run))
    assert not mark.exists()


@pytest.mark.parametrize("field", ["method", "network", "preprocess", "exchange", "preset", "unit", "dtype"])
@pytest.mark.parametrize(
    "value", ["os.system", "__import__('os').system('touch mark')", "../../evil", "evil", "torch.load"]
)
def test_metadata_that_names_code(digits_run, tmp_path, mark, monkeypatch, field, value):
    """A model says by name what it is of; a name that is none of ours is refused, with a checksum that fits."""
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Specialists.load(digits_run).save(tmp_path / "saved")
    path = tmp_path / "saved" / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["torchmcl"])
    about[field] = value
    del about["sha256"]
    tensors = load_file(path)
    about["sha256"] = model_files.checksum(about, tensors)
    save_file(tensors, path, metadata={"torchmcl": json.dumps(about)})
    (tmp_path / "saved" / "config.yaml").unlink()
    zeros = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    refused(lambda: Specialists.load(tmp_path / "saved").predict(zeros))
    assert not mark.exists()


@pytest.mark.parametrize("name", HARMS)
def test_a_flow_of_objects(tmp_path, mark, name):
    np.savez(tmp_path / "flow.npz", flow=np.array([harms(mark)[name]], dtype=object))
    trained = records.Trained(None, None, None, None, tmp_path, {}, torch.zeros(1))
    refused(lambda: records.flow(trained, ""))
    assert not mark.exists()

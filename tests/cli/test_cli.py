"""The command line as a person types it: good input works, bad input gets one clear line, code 2, nothing written."""

import csv
import json
import shlex
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import torchmcl
from torchmcl import cli, methods, networks
from torchmcl.cli import compare, entry
from torchmcl.cli import options as shared
from torchmcl.inference.predictor import Specialists


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    line = "train --method amcl --network simple_cnn --data digits --members 2 --epochs 3 --warmup 1 --width 8 --quiet"
    assert cli.main([*shlex.split(line), "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (20, 30), dtype=np.uint8)).save(folder / "grey.png")
    Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / "colour.jpg")
    return folder


def test_help_names_every_command(capsys):
    code, out, _ = torchmcl("--help", capsys)
    assert code == 0
    for command in ("train", "evaluate", "predict", "ls"):
        assert command in out
        code, own, _ = torchmcl(f"{command} --help", capsys)
        assert code == 0
        assert own
    assert torchmcl("", capsys)[0] == 0
    assert "torchmcl" in torchmcl("--version", capsys)[1]


@pytest.mark.parametrize("command", ["", *entry.COMMANDS, "study run", "study cost", "cache clear"])
def test_help_fits_80_columns_and_can_be_pasted(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = torchmcl(f"{command} --help", capsys)
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith(f"usage: torchmcl {command or 'COMMAND'} ")
    assert "torchmcl [options]" not in out


def test_help_shows_the_whole_description(capsys):
    text = " ".join(torchmcl("train --help", capsys)[1].split())
    assert "which must not exchange features) (default: auto)" in text
    assert " ." not in text.replace(" .csv", "").replace(" .npz", "")


@pytest.mark.parametrize(
    ("given", "missing"), [("predict", "RUN FILES"), ("predict runs/first", "FILES"), ("evaluate", "RUNS")]
)
def test_missing_arguments_have_the_names_of_the_help(given, missing, capsys):
    code, _, said = torchmcl(given, capsys)
    assert (code, said) == (2, f"torchmcl: Missing: {missing}. Try: torchmcl {given.split()[0]} --help\n")


@pytest.mark.parametrize(
    ("given", "guess"),
    [
        ("train --epochz 3", "--epochs"),
        ("evaluate r --jsn", "--json"),
        ("train --zzz 1", None),
        ("compare --seed 3", "--seeds"),
    ],
)
def test_a_misspelt_option_names_the_similar_one(given, guess, capsys):
    code, _, said = torchmcl(given, capsys)
    assert code == 2
    assert f" Did you mean {guess}? Try: torchmcl " in said or guess is None
    assert ("Did you mean" in said) == (guess is not None)


def test_train_help_has_every_option(capsys):
    _, out, _ = torchmcl("train --help", capsys)
    for option in (
        "--k",
        "--beta",
        "--gamma",
        "--precision",
        "--compile",
        "--num_nodes",
        "--data_dir",
        "--ema",
        "--resume",
    ):
        assert option in out


def test_train_help_starts_with_examples_and_explains_options(capsys):
    _, out, _ = torchmcl("train --help", capsys)
    assert out.index("Examples:") < out.index("--method METHOD")
    assert "type:" not in out
    assert "null" not in out
    text = " ".join(out.split())
    assert "the weight that each winner gives up (relaxed: 0.05)" in text
    about = shared.method_options() | shared.network_options() | shared.task_options()
    assert not [name for name, (_, text) in about.items() if text.startswith("(")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--members x", "Expected a whole number for --members, got 'x'."),
        ("--balance even", "Expected true or false, assignment, memory or both for --balance, got 'even'."),
        ("--precision 8", "Expected 32, bf16-mixed or 16-mixed for --precision, got '8'."),
        ("--eps 0.1", "It is an option of relaxed."),
        ("--depth 3", "It is an option of mlp."),
    ],
)
def test_wrong_options_are_explained(given, message, tmp_path, capsys):
    code, _, problem = torchmcl(f"train --method amcl --out {tmp_path}/run {given}", capsys)
    assert code == 2
    assert message in problem
    assert not (tmp_path / "run").exists()


def test_ls(capsys):
    code, out, _ = torchmcl("ls", capsys)
    assert code == 0
    for name in (*methods.names(), *networks.NAMES, "cifar10", "icoseg", "folder:PATH", "feature_fusion"):
        assert name in out


def test_evaluate_agrees_with_training(run, capsys):
    code, out, _ = torchmcl(f"evaluate {run} --json", capsys)
    assert code == 0
    found, kept = json.loads(out), json.loads((run / "metrics.json").read_text())
    for figure in ("oracle_error", "oracle_error_strict", "top1_error", "members", "examples"):
        assert found[figure] == kept[figure]
    code, out, _ = torchmcl(f"evaluate {run}", capsys)
    assert code == 0
    assert "top-1 error, %" in out


def test_several_runs_have_the_rows_of_one(run, capsys):
    def rows(line):
        code, out, _ = torchmcl(line, capsys)
        assert code == 0
        assert max(map(len, out.splitlines())) <= 80
        cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
        return {name: values for name, *values in cells}

    one, two = rows(f"evaluate {run}"), rows(f"evaluate {run} {run}")
    assert list(one) == list(two)
    assert all(values == one[name] * 2 for name, values in two.items())
    for name in ("oracle error, %", "top-1 error, %", "members' errors, %", "ECE, %", "NLL", "examples"):
        assert name in one


def test_predict(run, images, capsys):
    code, out, _ = torchmcl(f"predict {run} {images}/grey.png {images}/colour.jpg --json", capsys)
    assert code == 0
    rows = json.loads(out)
    assert [row["image"] for row in rows] == [f"{images}/grey.png", f"{images}/colour.jpg"]
    assert sum(rows[0]["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    member = int(Specialists.load(run).predict([images / "grey.png"]).member)
    assert rows[0]["member"] == member
    code, out, _ = torchmcl(f"predict {run} {images}/grey.png", capsys)
    assert code == 0
    assert "grey.png: " in out
    assert f"member {member + 1}" in out


def test_predict_a_folder(run, images, tmp_path, capsys):
    code, out, _ = torchmcl(f"predict {run} {images} --csv", capsys)
    header, *rows = csv.reader(out.splitlines())
    assert code == 0
    assert header[:5] == ["image", "claimed", "claim", "accepted", "member"]
    assert [row[0] for row in rows] == [f"{images}/colour.jpg", f"{images}/grey.png"]
    again = json.loads(torchmcl(f"predict {run} {images} --json", capsys)[1])
    assert [int(row[4]) for row in rows] == [row["member"] for row in again]
    shutil.copytree(images, folder := tmp_path / "mixed")
    (folder / "empty.png").touch()
    (folder / "text.jpg").write_text("text")
    code, _, err = torchmcl(f"predict {run} {folder}", capsys)
    assert code == 2
    assert "2 unreadable files: empty.png (empty), text.jpg (not an image). " in err
    code, out, err = torchmcl(f"predict {run} {folder} --skip-unreadable", capsys)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "They are left out." in err
    code, out, err = torchmcl(f"predict {run} {images} --csv --json", capsys)
    assert (code, out, err) == (2, "", "torchmcl: Choose either --json or --csv.\n")


def test_a_folder_is_described_once_per_command_and_fits_a_terminal(images, tmp_path, capsys, monkeypatch):
    for name in ("a cat, not a small one", "dog"):
        for i in range(5):
            (tmp_path / "pets" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(images / "colour.jpg", tmp_path / "pets" / name / f"{i}.jpg")
    (tmp_path / "pets" / "dog" / "empty.jpg").touch()
    first, second = (str(tmp_path / name) for name in "ab")
    line = f"train --data folder:{tmp_path}/pets --skip-unreadable --method ie --width 4 --members 2 --epochs 1 --quiet"
    for out in (first, second):
        assert torchmcl(f"{line} --out {out}", capsys)[0] == 0
    err = torchmcl(f"evaluate {first} {second}", capsys)[2]
    assert err.count("dog/empty.jpg (empty). They are left out.") == err.count("\n") == 1
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "80")
    wrapped = torchmcl(f"evaluate {first} {second}", capsys)[2]
    assert " ".join(wrapped.split()) == err.strip()
    assert max(len(part) for part in wrapped.splitlines() if str(tmp_path) not in part) <= 80
    line = (
        f"compare --data folder:{tmp_path}/pets --skip-unreadable --methods single,ie --seeds 1 --width 4 --members 2"
    )
    out = torchmcl(f"{line} --epochs 1 --out {tmp_path}/compare", capsys)[1]
    data = out[: out.index("Split: ")].splitlines()
    assert " ".join(data[:2]).startswith("Data: ")  # a long path is on a line of its own
    assert data[1].startswith("  ")
    lines = torchmcl("compare --methods ie,amcl", capsys)[2].splitlines()
    assert lines == ["torchmcl: Choose a folder for the runs with --out. Try:", f"  {compare.EXAMPLE}"]


def test_a_config_repeats_a_run(run, tmp_path, capsys):
    code, _, err = torchmcl(f"train --config {run}/config.yaml --out {tmp_path}/again --quiet", capsys)
    assert code == 0, err
    assert (tmp_path / "again" / "metrics.json").read_text() == (run / "metrics.json").read_text()
    assert (tmp_path / "again" / "config.yaml").read_text() == (run / "config.yaml").read_text()


def test_training_starts_with_what_was_found(tmp_path, capsys):
    folder = tmp_path / "my run"
    line = f"train --method ie --network mlp --width 8 --members 2 --epochs 1 --data.limit 200 --out '{folder}'"
    code, out, _ = torchmcl(line, capsys)
    assert code == 0
    data, split, model, *_ = out.splitlines()
    assert data == "Data: digits, 559 images (1 x 8 x 8), 10 classes (0, 1, 2, 3, 4, 5, …)"
    assert split == "Split: 180 for training, 20 for validation, 359 for testing"
    weights = json.loads((folder / "metrics.json").read_text())["parameters"]
    assert model == f"Model: ie, 2 x mlp, {weights:,} weights, on cpu"
    suggested = out.splitlines()[-1].strip()
    assert shlex.split(suggested)[:2] == ["torchmcl", "evaluate"]
    assert torchmcl(suggested.removeprefix("torchmcl "), capsys)[0] == 0


def test_lines_fit_80_columns(run, capsys):
    for line in (
        "ls",
        "study ls",
        "study cost ablation",
        f"evaluate {run}",
        "cache ls",
        "train --help",
        "predict --help",
    ):
        _, out, _ = torchmcl(line, capsys)
        assert [one for one in out.splitlines() if len(one.rstrip()) > 80] == [], line


def test_specialists_describe_themselves(run):
    text = repr(Specialists.load(run))
    assert text == "Specialists(amcl, 2 x simple_cnn, 1 x 8 x 8 uint8, 10 classes, cpu)"


def test_print_config(capsys):
    code, out, _ = torchmcl("train --method cmcl --epochs 7 --print_config", capsys)
    assert code == 0
    assert "method: cmcl" in out
    assert "epochs: 7" in out


def test_names_with_dashes_and_dots(tmp_path, capsys):
    line = "train --method ie --network mlp --width 8 --members 2 --epochs 1 --batch-size=64 --data.limit 200 --quiet"
    assert torchmcl(f"{line} --out {tmp_path}/r", capsys)[0] == 0


def damaged(folder, name):
    path = folder / name
    if name.endswith(".yaml"):
        path.write_text("method: [amcl")
    elif name.endswith(".png"):
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))
    elif name.endswith(".npz"):
        np.savez(path, x=np.zeros((10, 3)), y=np.zeros(9, dtype=int))
    elif name == "objects.npz":
        np.savez(path, x=np.array([object()]), y=np.zeros(1))
    return path


BAD = {
    "no such command": "trian",
    "no out": "train --method ie",
    "unknown option": "train --methd amcl --out {new}",
    "unknown method": "train --method amlc --out {new}",
    "unknown network": "train --network resnet19 --out {new}",
    "unknown data set": "train --data cifar11 --out {new}",
    "unknown exchange": "train --exchange gossip --epochs 1 --out {new}",
    "unknown preset": "train --preset heavy --epochs 1 --out {new}",
    "members not a number": "train --members five --out {new}",
    "no members": "train --members 0 --out {new}",
    "k beyond members": "train --members 3 --k 4 --out {new}",
    "k of nothing": "train --k 0 --out {new}",
    "an option of another method": "train --method ie --beta 0.1 --out {new}",
    "an option of another network": "train --network simple_cnn --depth 3 --out {new}",
    "no epochs": "train --epochs 0 --out {new}",
    "half an epoch": "train --epochs 1.5 --out {new}",
    "no batch": "train --batch-size 0 --out {new}",
    "no rate": "train --learning-rate 0 --out {new}",
    "a rate that is none": "train --learning-rate nan --out {new}",
    "negative decay": "train --weight-decay -1 --out {new}",
    "momentum of one": "train --momentum 1 --out {new}",
    "unknown optimizer": "train --optimizer lion --out {new}",
    "unknown schedule": "train --schedule up --out {new}",
    "unknown precision": "train --precision 8 --out {new}",
    "16 bits without a GPU": "train --precision 16-mixed --accelerator cpu --epochs 1 --out {new}",
    "unknown accelerator": "train --accelerator abacus --out {new}",
    "no GPU here": "train --accelerator cuda --epochs 1 --out {new}",
    "no devices": "train --devices 0 --out {new}",
    "unknown strategy": "train --strategy hope --out {new}",
    "no warmup": "train --warmup 0 --out {new}",
    "ema out of range": "train --ema 2 --out {new}",
    "width of nothing": "train --width 0 --out {new}",
    "unknown class": "train --data digits --data.classes 1,eleven --out {new}",
    "one class": "train --data digits --data.classes 1 --out {new}",
    "nothing to train on": "train --data digits --data.limit 0 --out {new}",
    "all of it held out": "train --data digits --data.validation 1 --out {new}",
    "patience without validation": "train --data digits --data.validation 0 --patience 2 --out {new}",
    "no such folder of images": "train --data folder:{new}/none --out {new}",
    "no such npz": "train --data npz:{new}.npz --out {new}",
    "npz of unequal lengths": "train --data npz:{npz} --out {new}",
    "out is a file": "train --out {file}",
    "out has files": "train --out {run}",
    "out cannot be written": "train --epochs 1 --out /proc/run",
    "resume of nothing": "train --resume {new}",
    "config missing": "train --config {new}.yaml --out {new}",
    "config not YAML": "train --config {yaml} --out {new}",
    "config with unknown keys": "train --config {strange} --out {new}",
    "evaluate of nothing": "evaluate {new}",
    "evaluate on other classes": "evaluate {run} --data digits --data.classes 1,2",
    "evaluate without a run": "evaluate",
    "predict of no image": "predict {run}",
    "predict of a missing image": "predict {run} {new}.png",
    "predict of a damaged image": "predict {run} {png}",
    "predict of a folder": "predict {run} {run}",
    "predict of text": "predict {run} {file}",
    "model damaged": "evaluate {broken}",
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind, run, tmp_path, capsys):
    places = {"new": tmp_path / "new", "run": run, "file": tmp_path / "file.txt", "broken": tmp_path / "broken"}
    places["file"].write_text("text")
    places["strange"] = tmp_path / "strange.yaml"
    places["strange"].write_text("colour: blue\n")
    places["broken"].mkdir()
    (places["broken"] / "config.yaml").write_text("data: digits\n")
    (places["broken"] / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:1000])
    places |= {name[4:]: damaged(tmp_path, name) for name in ("bad.yaml", "bad.png", "bad.npz")}
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    kept = (run / "metrics.json").read_bytes()
    code, out, err = torchmcl(BAD[kind].format(**places), capsys)
    assert code == 2, out + err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, err
    assert len(err) > 30
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert (run / "metrics.json").read_bytes() == kept


def test_there_are_at_least_forty_kinds():
    assert len(BAD) >= 40


def test_debug_shows_where(capsys):
    with pytest.raises(ValueError, match="Expected"):
        cli.main(["train", "--members", "0", "--out", "x", "--debug"])


def test_a_closed_pipe_ends_quietly(run):
    import subprocess
    import sys

    for words in (["evaluate", str(run), "--json"], ["ls"]):
        command = [sys.executable, "-m", "torchmcl", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.close()  # nobody reads the output
            assert process.stderr.read() == ""
        assert process.returncode == 1


def test_an_option_that_torch_would_choke_on(tmp_path, capsys):
    code, _, err = torchmcl(f"train --seed -1 --out {tmp_path}/r", capsys)
    assert code == 2
    assert "seed" in err


def test_import_is_light():
    import subprocess
    import sys

    heavy = "lightning", "matplotlib", "torchmetrics", "jsonargparse", "sklearn", "scipy", "PIL"
    script = f"import sys, torchmcl; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
    assert torch is not None

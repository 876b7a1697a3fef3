"""Runs that predict numbers, on the command line: every command works, or says in one line why it does not."""

import json
import re
import shlex

import numpy as np
import pytest
import torch

from command_line import torchmcl
from torchmcl import Specialists, cli

LINE = "train --network mlp --method annealed --members 3 --epochs 4 --width 8 --optimizer adam --learning-rate 0.01"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, and a run with one input and one target, a run with two targets, and a run with classes."""
    folder, rng = tmp_path_factory.mktemp("regression"), np.random.default_rng(5)
    x = rng.uniform(size=(300, 1))
    np.savez(folder / "one.npz", x=x, y=50 + x[:, 0] * rng.choice([-1, 1], 300))
    np.savez(folder / "two.npz", x=rng.uniform(size=(200, 3)), y=rng.standard_normal((200, 2)) * [1, 100])
    np.savez(folder / "classes.npz", x=x, y=(x[:, 0] > 0.5).astype(int))
    (folder / "rows.csv").write_text("input\n0.25\n0.75\n")
    for name, more in (("one", "--score bce"), ("two", "--loss gaussian --score mixture"), ("classes", "")):
        line = f"{LINE} {more} --data npz:{folder}/{name}.npz --out {folder}/{name} --quiet"
        assert cli.main(shlex.split(line)) == 0
    return folder


def test_train_prints_metrics_in_the_units_of_the_targets(folder, tmp_path, capsys):
    code, out, _ = torchmcl(f"{LINE} --data npz:{folder}/one.npz --out {tmp_path}/run", capsys)
    assert code == 0
    assert "validation: oracle RMSE 0." in out
    assert "test: oracle RMSE" in out
    assert ", NLL " in out
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "task: regression" in config
    assert "loss: squared" in config
    code, out, _ = torchmcl(f"train --resume {tmp_path}/run", capsys)
    assert code == 0


def test_the_shortest_command(folder, tmp_path, capsys):
    line = f"train --data npz:{folder}/one.npz --method annealed --members 4 --epochs 2 --out {tmp_path}/run"
    code, out, _ = torchmcl(f"{line} --loss gaussian --score bce", capsys)
    assert (code, "NLL" in out) == (0, True)
    assert Specialists.load(tmp_path / "run").model_config.network == "mlp"


def test_evaluate(folder, capsys):
    code, out, _ = torchmcl(f"evaluate {folder}/one --json", capsys)
    values, stored = json.loads(out), json.loads((folder / "one" / "metrics.json").read_text())
    assert code == 0
    for name in ("oracle_rmse", "rmse", "crps", "nll", "winners", "examples"):
        assert values[name] == pytest.approx(stored[name], rel=1e-5), name
    code, out, _ = torchmcl(f"evaluate {folder}/one {folder}/two", capsys)
    assert (code, "oracle RMSE" in out, "energy score" in out) == (0, True, True)
    code, out, _ = torchmcl(f"evaluate {folder}/two", capsys)
    assert "closest hypothesis" in out
    for option, message in (
        (f"--unseen npz:{folder}/one.npz", "unseen needs a run that predicts classes"),
        (f"--data npz:{folder}/classes.npz", "predicts numbers, but the targets of .* are classes"),
        (f"--data npz:{folder}/two.npz", r"examples of shape \(1,\), but those of .* have shape \(3,\)\.$"),
    ):
        code, _, err = torchmcl(f"evaluate {folder}/one {option}", capsys)
        assert code == 2
        assert err.count("\n") == 1
        assert re.search(message, err), err


def test_predict_rows(folder, capsys):
    code, out, _ = torchmcl(f"predict {folder}/one {folder}/rows.csv", capsys)
    lines = out.splitlines()
    assert code == 0
    assert [line.split(":")[0].split(", ")[1] for line in lines] == ["row 1", "row 2"]
    assert lines[0].count("%") == 3
    code, out, _ = torchmcl(f"predict {folder}/one {folder}/rows.csv --json", capsys)
    rows, answer = json.loads(out), Specialists.load(folder / "one").predict(torch.tensor([[0.25], [0.75]]))
    assert rows[1]["mean"] == pytest.approx(answer.mean[1].tolist())
    torch.testing.assert_close(torch.tensor(rows[1]["hypotheses"]), answer.hypotheses[:, 1])
    assert rows[1]["scores"] == pytest.approx(answer.scores[:, 1].tolist())
    code, out, _ = torchmcl(f"predict {folder}/two {folder}/two.npz", capsys)
    assert len(out.splitlines()) == 200
    assert "mean (" in out
    code, out, _ = torchmcl(f"predict {folder}/classes {folder}/rows.csv --json", capsys)
    label = Specialists.load(folder / "classes").predict(torch.tensor([[0.25], [0.75]])).label
    assert [row["label"] for row in json.loads(out)] == [str(one) for one in label.tolist()]
    code, _, err = torchmcl(f"predict {folder}/one {folder}/rows.csv --out {folder}/masks", capsys)
    assert (code, err) == (2, "torchmcl: Only a segmentation model writes masks. Omit masks, or --out.\n")
    code, _, err = torchmcl(f"predict {folder}/two {folder}/rows.csv", capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "(B, 3,), got (2, 1)" in err


def test_calibrate(folder, capsys):
    code, out, _ = torchmcl(f"calibrate {folder}/one --density mixture", capsys)
    assert (code, "has the density mixture" in out) == (0, True)
    code, out, _ = torchmcl(f"evaluate {folder}/one --json", capsys)
    assert json.loads(out)["density"] == "gaussian"
    code, out, _ = torchmcl(f"calibrate {folder}/one --json", capsys)
    assert (code, json.loads(out)["kernel"]) == (0, "voronoi")
    for line, message in (
        ("one --coverage 0.9", "coverage does not apply to the task Regression"),
        ("two", "need no calibration"),
        ("classes --density voronoi", "density does not apply to the task Classification"),
    ):
        code, _, err = torchmcl(f"calibrate {folder}/{line}", capsys)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


def test_export(folder, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'torchmcl[export]'")
    code, out, _ = torchmcl(f"export {folder}/two {tmp_path}/two.onnx --quantize", capsys)
    assert code == 0
    assert "(RMSE)" in out


def test_report_and_figures(folder, tmp_path, capsys):
    code, _, _ = torchmcl(f"report {folder}/one -o {tmp_path}/one.html", capsys)
    page = (tmp_path / "one.html").read_text()
    assert code == 0
    for text in ("Oracle RMSE", "CRPS", "Hypotheses over the input", "Learning curves", "Shares of the hypotheses"):
        assert text in page
    for text in ("Top-1 error", "Voronoi cells</h3>", "owns the classes", "was not drawn"):
        assert text not in page
    code, _, _ = torchmcl(f"report {folder}/one {folder}/two -o {tmp_path}/both.html", capsys)
    both = (tmp_path / "both.html").read_text()
    assert (code, "Voronoi cells</h3>" in both, "was not drawn" in both) == (0, True, False)
    code, _, _ = torchmcl(f"figures {folder}/two -o {tmp_path}/figures --format svg", capsys)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "voronoi_cells.svg",
        "predicted_against_true.svg",
        "learning_curves.svg",
        "share_over_time.svg",
        "hypothesis_shares.svg",
    }
    code, _, err = torchmcl(f"report {folder}/one {folder}/classes -o {tmp_path}/mixed.html", capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "Cannot compare runs that predict classes with runs that predict numbers" in err
    assert not (tmp_path / "mixed.html").exists()


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (lambda x: np.where(x[:, 0] > 0.9, np.nan, 1 + x[:, 0]), "", "Expected finite targets, got nan"),
        (lambda x: np.ones(len(x)), "", "Remove this target; there is nothing to predict"),
        (lambda x: x[:, 0], "--members 50", "at least 50 training examples, one per member"),
        (lambda x: (9 * x[:, 0]).astype(int), "--loss huber", "belongs to regression, but the targets are classes"),
        (lambda x: (9 * x[:, 0]).astype(int), "--task regression", "Convert integer targets to floats"),
        (lambda x: x[:, 0], "--task classification", "which has floats"),
        (lambda x: x[:, 0], "--loss cubed", "cubed"),
        (lambda x: x[:, 0], "--method cmcl", "got Regression"),
        (lambda x: x[:, 0], "--score mixture", "needs a likelihood"),
        (lambda x: x[:, 0], "--network simple_cnn", "Expected images"),
        (lambda x: x[:, 0], "--monitor accuracy --patience 2", "Unknown metric 'accuracy' for monitor"),
    ],
)
def test_bad_input_is_one_line_with_code_2(tmp_path, capsys, y, options, message):
    x = np.random.default_rng(1).uniform(size=(50, 1))
    np.savez(tmp_path / "data.npz", x=x, y=y(x))
    line = LINE.replace("--width 8", "") if "--network" in options else LINE
    code, _, err = torchmcl(f"{line} --data npz:{tmp_path}/data.npz --out {tmp_path}/run --quiet {options}", capsys)
    assert code == 2
    assert message in err
    if options != "--loss cubed":  # the parser of options adds a line of usage
        assert err.count("\n") == 1, err
    assert not (tmp_path / "run" / "config.yaml").exists()

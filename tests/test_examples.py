"""Every example runs as it stands."""

import copy
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

from torchmcl import methods

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def _untouched_family(monkeypatch):
    monkeypatch.setattr(methods, "_FAMILY", copy.copy(methods._FAMILY))
    torch.manual_seed(0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    names = runpy.run_path(str(path), run_name="__main__")
    if path.stem == "own_module":
        accuracy = (names["probabilities"].argmax(1) == names["labels"]).float().mean()
        assert accuracy > 0.9
        assert (names["objective"].memory.flags.sum(1) == 1).all()
    if path.stem == "winner_takes_all":
        assert names["min_fde"](names["trajectories"], names["y"]) < 0.05
        assert 0.6 < names["left"] < 0.8
    if path.stem == "scikit_learn_regression":
        assert names["best_error"] < 0.5 < 2 < names["mean_error"]
        assert 0.55 < names["above"] < 0.85
    if path.stem == "trajectories":
        assert names["missed"] < 0.1
        assert names["final"] < names["one_final"] / 2
    if path.stem == "image_folder":
        assert len(list((tmp_path / "photos" / "7").glob("*.png"))) > 100


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch, tmp_path):
    """From a folder of images to rejection, cell by cell; no output is stored that could be out of date."""
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells)
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, cell in enumerate(cells, start=1):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    images, specialists = names["images"], names["specialists"]
    assert len(images.classes) == 10
    assert specialists.metrics["top1_error"] < 15
    answer = specialists.predict(images.test)
    wrong = answer.label != images.test.target
    assert 0.7 < float(answer.accepted.double().mean()) < 1
    assert float(wrong[answer.accepted].double().mean()) < float(wrong.double().mean())
    assert not bool(names["answer"].accepted[-1])  # the noise
    assert bool(names["answer"].accepted[:-1].any())
    assert "Confusion matrix" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "lines"), [("own_module", 15), ("new_method", 20), ("winner_takes_all", 9)])
def test_an_example_is_as_short_as_promised(name, lines):
    text = (ROOT / "examples" / f"{name}.py").read_text()
    core = text.split("[start:core]")[1].split("# --8<-- [end:core]")[0]
    assert sum(bool(line.strip()) for line in core.splitlines()) <= lines

"""A run folder that an earlier version wrote, with options at the defaults of its time: it is read and resumed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from torchmcl import UsageError, cli
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.model_files import training_config
from torchmcl.training.config import TrainConfig

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "run_format_1"


@pytest.fixture
def run(tmp_path):
    """A finished run of format 1, and one that was interrupted in the memory-based phase."""
    shutil.copytree(FORMAT_1, tmp_path / "runs")
    return tmp_path / "runs"


def test_its_defaults_are_those_of_its_time(run):
    config = training_config(run / "finished")
    assert (config["warmup"], config["data_seed"]) == (5, 0)
    assert Specialists.load(run / "finished").method.options["warmup"] == 5
    assert TrainConfig.of(**config).resolved().method.options["beta"] == 0.02


def test_it_evaluates_to_the_same_numbers(run, capsys):
    assert cli.main(["evaluate", str(run / "finished"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = json.loads((run / "finished" / "metrics.json").read_text())
    for name in ("oracle_error", "top1_error", "members", "nll", "brier"):
        assert found[name] == pytest.approx(kept[name], abs=1e-4)


def test_it_predicts(run, tmp_path, capsys):
    from PIL import Image

    Image.new("L", (8, 8), 9).save(tmp_path / "one.png")
    assert cli.main(["predict", str(run / "finished"), str(tmp_path / "one.png")]) == 0
    assert "member" in capsys.readouterr().out
    assert Specialists.load(run / "finished").memory.flags.sum(1).tolist() == [1] * 10


def test_it_is_reported_and_calibrated(run, tmp_path, capsys):
    assert cli.main(["report", str(run / "finished"), "-o", str(tmp_path / "report.html")]) == 0
    assert "--warmup 5" in (tmp_path / "report.html").read_text()
    assert "--beta 0.02" in (tmp_path / "report.html").read_text()
    assert cli.main(["calibrate", str(run / "finished"), "--coverage", "0.9"]) == 0
    capsys.readouterr()


def test_it_goes_on_where_it_was_interrupted(run, capsys):
    """To the end of the uninterrupted run of that version, but for what this version writes besides."""
    assert cli.main(["train", "--resume", str(run / "interrupted"), "--quiet"]) == 0
    one, two = (json.loads((run / name / "metrics.json").read_text()) for name in ("finished", "interrupted"))
    assert (one["epochs"], one["counts"], one["flags"]) == (two["epochs"], two["counts"], two["flags"])
    for name in ("oracle_error", "top1_error", "nll", "assigned", "members"):
        np.testing.assert_allclose(two[name], one[name], atol=0.3)  # machines round in different ways
    assert len((run / "interrupted" / "log.csv").read_text().splitlines()) == 9
    x = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    answers = [Specialists.load(run / name).predict(x).probabilities for name in ("finished", "interrupted")]
    torch.testing.assert_close(*answers, atol=1e-2, rtol=0)


def test_it_is_not_continued_as_another(run, capsys):
    (run / "interrupted" / "config.yaml").write_text(
        (run / "interrupted" / "config.yaml").read_text().replace("beta: 0.02", "beta: 0.5")
    )
    assert cli.main(["train", "--resume", str(run / "interrupted"), "--quiet"]) == 2
    assert "its run was started with beta 0.02, not 0.5" in capsys.readouterr().err


def test_its_config_repeats_it(run, tmp_path):
    """With the warm-up that it left open, which was 5 epochs then."""
    config = run / "finished" / "config.yaml"
    assert cli.main(["train", "--config", str(config), "--quiet", "--out", str(tmp_path / "again")]) == 0
    assert training_config(tmp_path / "again")["warmup"] == 5


def test_one_that_was_all_warm_up_is_refused_in_one_line(run, capsys):
    config = run / "interrupted" / "config.yaml"
    config.write_text(config.read_text().replace("epochs: 8", "epochs: 5"))
    assert cli.main(["train", "--resume", str(run / "interrupted"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "the run is from an earlier version" in said
    assert "Start a new run in another folder" in said


def test_other_splits_than_it_was_trained_on_are_refused(run, capsys):
    """It did not keep the seed of its splits, but its checkpoint knows the labels."""
    config = run / "finished" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1"))
    assert cli.main(["calibrate", str(run / "finished"), "--coverage", "0.9"]) == 2
    assert "The validation set of digits differs from the one that" in capsys.readouterr().err


def test_a_result_of_format_1_is_refused_in_one_line(tmp_path):
    from torchmcl.studies.store import Store

    (tmp_path / "ablation" / "mini").mkdir(parents=True)
    (tmp_path / "ablation" / "mini" / "099c3ea9fc69c3d3.json").write_text('{"format": 1}')
    with pytest.raises(UsageError, match=r"Convert it to format 2: python results/migrate.py"):
        Store(tmp_path).read("ablation", "mini")

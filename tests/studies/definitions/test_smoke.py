"""Every study, end to end through the command line, at smoke."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from torchmcl import cli, studies
from torchmcl.errors import UsageError
from torchmcl.studies.reevaluation import Reevaluation
from torchmcl.studies.scales import NAMES, scale
from torchmcl.studies.store import Store, example_errors, validate
from torchmcl.studies.tables import MISSING
from torchmcl.studies.weights import write_weights

FIGURES = ("confidence", "auxiliary", "assignment_flow", "grad_cam", "data_size", "overlap", "toy_regression", "sparse")


def show(folder, out, *names, more=()):
    line = ["study", "show", *names, "--scale", "smoke", "--results", str(folder / "results"), "--out", str(out), *more]
    return cli.main(line)


@pytest.mark.parametrize("name", studies.NAMES)
def test_a_study_is_run_and_shown(smoke, name, tmp_path, capsys):
    assert show(smoke, tmp_path, name) == 0
    printed = capsys.readouterr().out
    study = studies.load(name)
    found = Store(smoke / "results").read(name, "smoke")
    assert set(found) == {spec.hash for spec in study.runs(scale("smoke", name))}
    assert "runs are available" not in printed  # nothing is missing
    text = (tmp_path / name / "smoke.md").read_text()
    assert any(data in text for data in ("digits", "three-modes", "diabetes"))
    assert any(network in text for network in ("simple_cnn", "fcn", "efficientnet_lite0", "mlp"))
    assert "epochs" in text
    assert "seed 0" in text
    assert f"Command: `torchmcl study run {name} --scale smoke`" in text
    assert "\\begin{tabular}" in (tmp_path / name / "smoke.tex").read_text()
    pictures = sorted(path.name for path in (tmp_path / name).glob("*.png"))
    assert pictures == (["smoke-figure.png", "smoke.png"] if name in FIGURES else ["smoke.png"])
    for picture in pictures:
        image = Image.open(tmp_path / name / picture).convert("L")
        assert image.width > 300
        assert len(image.getcolors()) > 9  # something is drawn


def test_run_again_runs_nothing(smoke, capsys):
    before = {path: path.stat().st_mtime_ns for path in smoke.rglob("*.json")}
    line = ["study", "run", *studies.NAMES, "--workers", "0", "--results", str(smoke / "results")]
    assert cli.main([*line, "--work", str(smoke / "work")]) == 0
    assert "finished" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in smoke.rglob("*.json")} == before


def test_studies_share_runs(smoke):
    found = {name: set(Store(smoke / "results").read(name, "smoke")) for name in studies.NAMES}
    assert len(found["ablation"] & found["exchange"] & found["overlap"] & found["leaderboard"]) == 1
    trained = {path.name for path in (smoke / "work").iterdir() if path.is_dir()}
    assert trained == set().union(*found.values())


def test_show_says_what_is_missing_and_trains_nothing(tmp_path, capsys):
    folder = tmp_path / "results"
    assert (
        cli.main(["study", "show", "ablation", "--scale", "mini", "--results", str(folder), "--out", str(tmp_path)])
        == 0
    )
    printed = " ".join(capsys.readouterr().out.split())
    assert "0 of 8 runs are available" in printed
    assert "torchmcl study run ablation --scale mini" in printed
    assert MISSING in printed
    assert "9.74" in printed  # the published number
    assert not folder.exists()


def test_show_imports_no_training(smoke, tmp_path):
    code = (
        "import sys; from torchmcl.studies.show import show, write\n"
        f"write(*show('ablation', 'smoke', results={str(smoke / 'results')!r}), {str(tmp_path)!r})\n"
        "trains = ('torchmcl.training.fitting', 'torchmcl.training.loop', 'lightning.')\n"
        "print([name for name in sys.modules if name.startswith(trains)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_members_want_is_not_what_the_memory_gives_them(smoke):
    amcl = next(
        spec for spec in studies.load("assignment_flow").runs(scale("smoke")) if spec.options["method"] == "amcl"
    )
    result = Store(smoke / "results").read("assignment_flow", "smoke")[amcl.hash]
    wanted, taken = np.array(result["records"]["flow"][-1]), np.array(result["assigned"])
    assert ((taken > 0) == np.array(result["flags"])).all()
    assert (wanted.sum(1) == taken.sum(1)).all()  # the same examples, by class
    assert (wanted != taken).any()


def test_choices_on_the_test_set_are_labelled(smoke, tmp_path, capsys):
    assert show(smoke, tmp_path, "overlap", more=["--select", "test"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "choices made on the TEST set" in printed
    assert (tmp_path / "overlap" / "smoke-selected-on-test.md").is_file()


def test_ls_names_every_study(capsys):
    assert cli.main(["study", "ls"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (*studies.NAMES, *NAMES))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("run ablatio", "Did you mean 'ablation'?"),
        ("run ablation --scale big", "Unknown scale 'big'. Available: smoke, mini, standard, scratch, paper"),
        ("run ablation --seeds 0", "Expected seeds >= 1"),
        ("run ablation --workers -1", "Expected workers >= 0"),
        ("show ablation --select hope", "Available: validation, test"),
        ("draw ablation", "invalid choice: 'draw'"),
        ("run", "NAMES"),
    ],
)
def test_bad_input_is_one_line(line, problem, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["study", *line.split()]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_squared_errors_give_the_stored_rmse(smoke):
    found = Store(smoke / "results").read("tables_regression", "smoke")
    assert len(found) == 10
    for result in found.values():
        ensemble, best = example_errors(result)
        assert (best <= ensemble).all() or result["configuration"]["members"] > 1  # the mean can beat every hypothesis
        assert np.sqrt(ensemble.mean()) == pytest.approx(result["test"]["rmse"], rel=1e-4)
        assert np.sqrt(best.mean()) == pytest.approx(result["test"]["oracle_rmse"], rel=1e-4)
        assert len(result["test"]["winners"]) == result["configuration"]["members"]
        assert result["test"]["nll"] > -5


def test_the_temperature_of_a_mixture_fits_the_mean_over_the_targets():
    runs = studies.load("tables_regression").runs(scale("standard", "tables_regression"))
    assert len(runs) == 4 * 5 * 20
    starts = {spec.options["data"]: spec.options["start"] for spec in runs if spec.options.get("score") == "mdn"}
    assert starts == {"diabetes": 1.0, "linnerud": 1 / 3, "boston-housing": 1.0, "auto-mpg": 1.0}


def test_a_changed_squared_error_is_found(smoke, tmp_path):
    path = next((smoke / "results" / "tables_regression" / "smoke").glob("*.json"))
    result = json.loads(path.read_text())
    result["wrong"]["squared"][0] += 100 * result["test"]["rmse"] ** 2
    with pytest.raises(UsageError, match="its examples give"):
        validate(result, path)


def test_numbers_are_predicted_again_from_weights(smoke, tmp_path):
    hash, result = next(iter(Store(smoke / "results").read("tables_regression", "smoke").items()))
    write_weights(smoke / "work" / hash, tmp_path / f"{hash}.safetensors")
    found = Reevaluation(exact=True)(tmp_path / f"{hash}.safetensors", result)
    assert (found.changed, found.problems) == (0, [])
    result["wrong"]["squared"][0] += result["test"]["rmse"] ** 2
    result["test"]["rmse"] *= 1.1
    found = Reevaluation()(tmp_path / f"{hash}.safetensors", result)
    assert len(found.problems) == 2
    assert "test.rmse" in found.problems[1]


def test_results_hold_what_the_store_promises(smoke):
    spec = studies.load("ablation").runs(scale("smoke", "ablation"))[-1]
    result = json.loads(Store(smoke / "results").path("ablation", "smoke", spec).read_text())
    assert result["configuration"] == spec.configuration
    assert spec.options.items() <= result["configuration"].items()
    assert (result["study"], result["scale"], result["seed"]) == ("ablation", "smoke", 0)
    assert {"oracle_error", "top1_error", "harmonic_mean", "members", "nll", "ece"} <= set(result["test"])
    assert set(result["test"]) == set(result["validation"])
    assert len(result["assigned"]) == len(result["errors_of_groups"]) == len(result["groups"]) == 10
    assert {len(row) for row in result["errors_of_groups"]} == {4}
    assert {"seconds", "commit", "torch", "torchmcl", "python", "threads"} <= set(result["trained"])

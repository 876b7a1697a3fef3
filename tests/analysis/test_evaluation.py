"""Runs measured from the command line: known digits against unseen ones, calibration, several runs compared."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from command_line import torchmcl
from torchmcl import data, metrics
from torchmcl.analysis.evaluation import Recorder, evaluate_run
from torchmcl.inference.predictor import Specialists
from torchmcl.training import fit

KNOWN, UNSEEN = "0,1,2,3,4,5", "6,7,8,9"


def figures(line, capsys):
    code, out, err = torchmcl(f"{line} --json", capsys)
    assert code == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """IE and AMCL of the same network, on six of the ten digits."""
    folder = tmp_path_factory.mktemp("runs")
    for method, options in (("ie", {}), ("amcl", {"warmup": 2, "preset": "light"})):
        fit(
            method,
            "simple_cnn",
            "digits",
            members=3,
            epochs=6,
            width=8,
            data_classes=KNOWN,
            out=folder / method,
            **options,
            verbose=False,
        )
    return folder


@pytest.fixture
def run(runs, tmp_path):
    return Path(shutil.copytree(runs / "amcl", tmp_path / "amcl"))


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    """Pictures and arrays of the other digits."""
    folder, test = tmp_path_factory.mktemp("unseen"), data.load("digits", classes=UNSEEN).test
    (folder / "images" / "deep").mkdir(parents=True)
    for i, image in enumerate(test.images[:40]):
        Image.fromarray(image[0].numpy()).resize((16, 16), Image.Resampling.NEAREST).save(
            folder / "images" / "deep" / f"{i}.png"
        )
    x, y = test.images.numpy(), test.target.numpy()
    np.savez(folder / "digits.npz", x=x, y=y, x_test=x, y_test=y)
    return folder


@pytest.mark.parametrize("method", ["ie", "amcl"])
def test_unseen_digits_are_told(method, runs, capsys):
    found = figures(f"evaluate {runs}/{method} --unseen digits --unseen.classes {UNSEEN}", capsys)
    assert {"accuracy", "ece", "nll", "brier", "aurc"} <= found.keys()
    expected = {"max_probability", "max_logit", "entropy", "mutual_information", "variation_ratio", "energy"}
    expected |= {"claim_energy", "nearest_neighbours", "mahalanobis", "virtual_logit"}
    if method == "amcl":
        expected |= {"smallest_auxiliary", "kth_auxiliary", "mean_auxiliary"}
    assert found["unseen"]["scores"].keys() == expected
    best = found["unseen"]["scores"][found["unseen"]["best"]]
    assert best["auroc"] == max(row["auroc"] for row in found["unseen"]["scores"].values()) > 75
    assert all(0 <= value <= 100 for row in found["unseen"]["scores"].values() for value in row.values())


def test_figures_by_hand(runs, capsys):
    found = figures(f"evaluate {runs}/amcl --unseen digits --unseen.classes {UNSEEN}", capsys)
    specialists = Specialists.load(runs / "amcl")
    test, other = (data.load("digits", classes=classes).test for classes in (KNOWN, UNSEEN))
    known, foreign = (specialists.predict(part) for part in (test, other))
    row = found["unseen"]["scores"]["max_probability"]
    assert row["auroc"] == pytest.approx(
        100 * float(metrics.auroc(1 - known.confidence, 1 - foreign.confidence)), abs=0.01
    )
    row = found["unseen"]["scores"]["smallest_auxiliary"]
    inlier, outlier = (answer.members[:, :, -1].amin(0) for answer in (known, foreign))
    assert row["fpr95"] == pytest.approx(100 * float(metrics.fpr_at_95_tpr(inlier, outlier)), abs=0.01)
    assert row["aupr"] == pytest.approx(100 * float(metrics.aupr(inlier, outlier)), abs=0.01)
    wrong = known.label != test.target
    assert found["accuracy"] == pytest.approx(100 * float((~wrong).float().mean()), abs=1e-3)
    assert found["aurc"] == pytest.approx(100 * float(metrics.aurc(known.confidence, wrong)), abs=1e-3)
    assert found["risk_coverage"][-1] == [100, found["top1_error"]]
    assert found["examples"] == len(test)
    assert found["unseen"]["examples"] == len(other)


def test_scores_on_features_by_hand(runs, capsys):
    found = figures(f"evaluate {runs}/ie --unseen digits --unseen.classes {UNSEEN}", capsys)["unseen"]["scores"]
    specialists = Specialists.load(runs / "ie")
    known = data.load("digits", classes=KNOWN, validation=0.1)
    inputs = []
    for module in specialists.ensemble.bodies:  # of the last layers, the linear ones
        layer = [part for part in module.modules() if isinstance(part, torch.nn.Linear)][-1]
        layer.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))

    def unit(examples):
        inputs.clear()
        specialists.forward(examples.images)
        x = torch.cat(inputs, dim=1).double()
        return x / x.norm(dim=1, keepdim=True)

    train, test, other = map(unit, (known.train, known.test, data.load("digits", classes=UNSEEN).test))
    inlier, outlier = (torch.cdist(x, train).sort(1).values[:, 49] for x in (test, other))
    row = found["nearest_neighbours"]
    assert row["auroc"] == pytest.approx(100 * float(metrics.auroc(inlier, outlier)), abs=0.05)
    kept = inlier.sort().values[-(-95 * len(inlier) // 100) - 1]  # 95 % of the test set have at most this distance
    assert row["accepted95"] == pytest.approx(100 * float((outlier <= kept).double().mean()), abs=0.5)


def test_without_training_data_scores_on_features_are_left_out(runs, tmp_path, capsys):
    Specialists.load(runs / "ie").save(tmp_path / "saved")
    line = f"evaluate {tmp_path}/saved --data digits --data.classes {KNOWN} --unseen digits --unseen.classes {UNSEEN}"
    found = figures(line, capsys)["unseen"]["scores"]
    assert "energy" in found
    assert "nearest_neighbours" not in found


def test_unseen_images_are_resized(runs, tmp_path, capsys):
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", x=images, y=np.arange(30) % 2)
    found = figures(f"evaluate {runs}/ie --unseen npz:{tmp_path}/noise.npz", capsys)["unseen"]
    assert found["scores"][found["best"]]["auroc"] > 75


def test_what_is_no_different_is_not_told(runs, capsys):
    found = figures(f"evaluate {runs}/amcl --unseen digits --unseen.classes {KNOWN}", capsys)
    assert {row["auroc"] for row in found["unseen"]["scores"].values()} == {50}


def test_unseen_pictures_and_arrays(runs, unseen, capsys):
    pictures = figures(f"evaluate {runs}/amcl --unseen folder:{unseen}/images", capsys)["unseen"]
    assert pictures["examples"] == 40
    arrays = figures(f"evaluate {runs}/amcl --unseen npz:{unseen}/digits.npz", capsys)["unseen"]
    assert arrays["examples"] == len(data.load("digits", classes=UNSEEN).test)
    assert arrays["scores"][arrays["best"]]["auroc"] > 75


def test_unseen_images_in_a_messy_folder(runs, unseen, tmp_path, capsys):
    folder = shutil.copytree(unseen / "images", tmp_path / "images")
    (folder / "@eaDir").mkdir()
    for name in ("@eaDir/0.png", "._0.png", "text.jpg", "deep/empty.png"):
        (folder / name).write_text("text" * (name != "deep/empty.png"))
    line = f"evaluate {runs}/amcl --unseen folder:{folder}"
    code, _, err = torchmcl(line, capsys)
    assert code == 2
    assert "2 unreadable files: text.jpg (not an image), deep/empty.png (empty)." in err
    assert figures(f"{line} --skip-unreadable", capsys)["unseen"]["examples"] == 40


def test_logits_are_computed_once(runs, monkeypatch):
    asked = []
    forward = Recorder.forward
    monkeypatch.setattr(Recorder, "forward", lambda self, x: asked.append(len(x)) or forward(self, x))
    found = evaluate_run(runs / "amcl", unseen="digits", unseen_classes=UNSEEN)
    assert sum(asked) == found["examples"] + found["unseen"]["examples"]


def test_runs_compared(runs, capsys):
    line = f"evaluate {runs}/ie {runs}/amcl --unseen digits --unseen.classes {UNSEEN}"
    found = figures(line, capsys)
    assert [each["method"] for each in found] == ["ie", "amcl"]
    code, out, _ = torchmcl(line, capsys)
    assert code == 0
    for each in found:
        best = each["unseen"]["scores"][each["unseen"]["best"]]
        assert f"{best['auroc']:.2f}" in out
    code, out, _ = torchmcl(f"evaluate {runs}/ie {runs}/amcl", capsys)
    assert code == 0
    assert "Brier score" in out
    assert "AUROC" not in out


def test_calibrate_and_evaluate(run, capsys):
    plain = figures(f"evaluate {run}", capsys)
    assert "rejection" not in plain
    promised = figures(f"calibrate {run} --coverage 0.9 --temperature", capsys)
    assert promised["coverage"] >= 90
    assert promised["accepted_error"] <= promised["error"]
    found = figures(f"evaluate {run}", capsys)
    assert found["nll"] < plain["nll"]  # at the new temperature
    assert found["rejection"]["claim_threshold"] == promised["claim_threshold"]
    assert found["rejection"]["threshold"] == promised["threshold"]
    specialists = Specialists.load(run)
    test = data.load("digits", classes=KNOWN).test
    answer = specialists.predict(test)
    wrong = answer.label != test.target
    assert found["rejection"]["coverage"] == pytest.approx(100 * float(answer.accepted.float().mean()), abs=1e-3)
    assert found["rejection"]["accepted_error"] == pytest.approx(
        100 * float(wrong[answer.accepted].float().mean()), abs=1e-3
    )
    assert found["rejection"]["error"] == found["top1_error"]
    code, out, _ = torchmcl(f"evaluate {run}", capsys)
    assert code == 0
    assert "rejection: coverage" in out
    code, out, _ = torchmcl(f"calibrate {run} --max-error 0.05", capsys)
    assert code == 0
    assert "(temperature 1)" in out


def test_rejected_is_said(run, tmp_path, capsys):
    assert torchmcl(f"calibrate {run} --coverage 0.05", capsys)[0] == 0
    Image.fromarray(np.full((8, 8), 128, dtype=np.uint8)).save(tmp_path / "grey.png")
    code, out, _ = torchmcl(f"predict {run} {tmp_path}/grey.png", capsys)
    assert code == 0
    assert out.strip().endswith("rejected")


def test_a_saved_model_is_evaluated_on_named_data(run, tmp_path, capsys):
    Specialists.load(run).save(tmp_path / "saved")
    found = figures(f"evaluate {tmp_path}/saved --data digits --data.classes {KNOWN}", capsys)
    assert found["top1_error"] == figures(f"evaluate {run}", capsys)["top1_error"]
    (tmp_path / "saved" / "config.yaml").unlink()
    assert figures(f"evaluate {tmp_path}/saved --data digits --data.classes {KNOWN}", capsys) == found


BAD = {
    "unseen of no such set": "evaluate {run} --unseen cifar11",
    "unseen of another shape": "evaluate {run} --unseen npz:{npz}",
    "unseen of no such class": "evaluate {run} --unseen digits --unseen.classes eleven",
    "unseen of an empty folder": "evaluate {run} --unseen folder:{empty}",
    "evaluate a saved model on nothing": "evaluate {saved}",
    "evaluate two, of which one is none": "evaluate {run} {empty}",
    "calibrate nothing": "calibrate",
    "calibrate no run": "calibrate {empty} --coverage 0.9",
    "calibrate a saved model": "calibrate {saved} --coverage 0.9",
    "calibrate without a promise": "calibrate {run}",
    "calibrate with two promises": "calibrate {run} --coverage 0.9 --max-error 0.1",
    "calibrate beyond everything": "calibrate {run} --coverage 1.5",
    "calibrate to a negative error": "calibrate {run} --max-error -0.1",
    "calibrate to words": "calibrate {run} --coverage most",
    "calibrate without validation": "calibrate {bare} --coverage 0.9",
    "resume a saved model": "train --resume {saved}",
}


@pytest.fixture(scope="module")
def places(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    (folder / "empty").mkdir()
    np.savez(folder / "table.npz", x=np.zeros((20, 9), dtype=np.float32), y=np.arange(20) % 2)
    Specialists.load(runs / "amcl").save(folder / "saved")
    fit("ie", "mlp", "digits", members=2, epochs=1, width=4, data_validation=0, out=folder / "bare", verbose=False)
    return {
        "run": runs / "amcl",
        "empty": folder / "empty",
        "npz": folder / "table.npz",
        "saved": folder / "saved",
        "bare": folder / "bare",
    }


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind, places, capsys):
    before = {
        path: path.read_bytes() for folder in places.values() for path in Path(folder).rglob("*") if path.is_file()
    }
    code, out, err = torchmcl(BAD[kind].format(**places), capsys)
    assert code == 2, out
    assert len(err.strip().splitlines()) == 1, err
    assert err.startswith("torchmcl: ")
    assert "report it" not in err
    assert before == {
        path: path.read_bytes() for folder in places.values() for path in Path(folder).rglob("*") if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_cifar10_against_svhn(tmp_path, capsys):
    options = {"members": 2, "epochs": 1, "width": 4, "preset": "light", "data_limit": 500}
    fit("amcl", "simple_cnn", "cifar10", out=tmp_path / "run", verbose=False, **options)
    found = figures(f"evaluate {tmp_path}/run --data cifar10 --unseen svhn", capsys)
    assert (found["examples"], found["unseen"]["examples"]) == (10_000, 10_000)
    assert len(found["unseen"]["scores"]) == 13


def test_segmentation(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (tmp_path / "set" / kind).mkdir(parents=True)
    (tmp_path / "noise").mkdir()
    for i in range(20):
        mask = np.zeros((16, 20), dtype=np.uint8)
        mask[4:10, 4 + i % 8 : 12 + i % 8] = 255
        image = np.where(mask > 0, 200, 60)[:, :, None] + rng.normal(0, 10, (16, 20, 3))
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(tmp_path / "set" / "images" / f"{i}.png")
        Image.fromarray(mask).save(tmp_path / "set" / "masks" / f"{i}.png")
        noise = rng.integers(0, 255, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "noise" / f"{i}.png")
    run = tmp_path / "run"
    fit(
        "ie",
        "fcn",
        f"segmentation-folder:{tmp_path}/set",
        members=2,
        epochs=8,
        width=4,
        batch_size=4,
        out=run,
        verbose=False,
        data_validation=0.2,
    )
    promised = figures(f"calibrate {run} --coverage 0.5", capsys)
    assert promised["coverage"] >= 50
    found = figures(f"evaluate {run} --unseen folder:{tmp_path}/noise", capsys)
    assert found["rejection"]["error"] == pytest.approx(found["top1_error"], abs=1e-3)
    specialists, test = Specialists.load(run), data.load(f"segmentation-folder:{tmp_path}/set", parts=("test",)).test
    noise = sorted((tmp_path / "noise").iterdir())
    inlier, outlier = (
        torch.special.entr(specialists.predict(x).probabilities).sum(1).mean((1, 2)) for x in (test, noise)
    )
    expected = 100 * float(metrics.auroc(inlier, outlier))
    assert found["unseen"]["scores"]["entropy"]["auroc"] == pytest.approx(expected, abs=1e-3)
    accepted = specialists.predict(test).accepted
    assert found["rejection"]["coverage"] == pytest.approx(100 * float(accepted.float().mean()), abs=1e-3)

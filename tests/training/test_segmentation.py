"""Training on masks, from the command line to PNGs, on small masks made here and on the real iCoseg."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from torchmcl import cli, methods
from torchmcl.objectives.objective import PerPixel, State


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Bright squares on dark ground in one group, dark squares on bright ground in the other."""
    folder, rng = tmp_path_factory.mktemp("squares"), np.random.default_rng(0)
    for group, (ground, square) in {"bright": (60, 200), "dark": (200, 60)}.items():
        for kind in ("images", "masks"):
            (folder / kind / group).mkdir(parents=True)
        for i in range(20):
            top, left = rng.integers(2, 16, 2)
            mask = np.zeros((32, 40), dtype=np.uint8)
            mask[top : top + 12, left : left + 14] = 255
            image = np.where(mask > 0, square, ground)[:, :, None] + rng.normal(0, 12, (32, 40, 3))
            Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / group / f"{i}.png")
            Image.fromarray(mask).save(folder / "masks" / group / f"{i}.png")
    return folder


def train(root, out, *options):
    line = ["train", "--network", "fcn", "--width", "8", "--data", f"segmentation-folder:{root}", "--members", "2"]
    line += ["--epochs", "12", "--warmup", "4"] if "amcl" in options else ["--epochs", "12"]
    return cli.main([*line, "--batch-size", "8", "--quiet", "--out", str(out), *options])


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "amcl"
    assert train(root, out, "--method", "amcl") == 0
    return out


def test_amcl_learns_to_segment(run):
    figures = json.loads((run / "metrics.json").read_text())
    assert figures["oracle_error"] <= figures["top1_error"] < 15
    assert figures["oracle_error"] <= figures["oracle_error_strict"]
    assert figures["mean_iou"] > 60
    assert np.array(figures["counts"]).shape == (2, 2)  # groups by members
    assert len(figures["members"]) == len(figures["members_strict"]) == 2


@pytest.mark.parametrize("method", [name for name in methods.names() if name != "amcl"])
def test_every_method_trains_on_masks(method, root, tmp_path):
    assert train(root, tmp_path / "run", "--method", method, "--epochs", "2") == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["examples"] == 8


def test_an_ensemble_of_one(root, tmp_path):
    assert train(root, tmp_path / "run", "--method", "amcl", "--members", "1", "--epochs", "5") == 0
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert figures["members"] == [figures["top1_error"]] == [figures["oracle_error"]]


@pytest.mark.parametrize("method", ["amcl", "smcl", "vmcl"])
def test_pixels_as_the_unit(method, root, tmp_path):
    assert train(root, tmp_path / "run", "--method", method, "--unit", "pixel", "--epochs", "6") == 0
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert np.array(figures["assigned"]).sum() == pytest.approx(28 * 32 * 40)  # every pixel is taken once
    assert np.array(figures["assigned"]).shape == (2, 2)  # classes by members


def test_a_pixel_as_unit_is_an_example_each():
    logits, target = torch.randn(3, 2, 4, 5, 6), torch.randint(4, (2, 5, 6))
    by_pixel = PerPixel(methods.build("smcl", 3, 4).new_objective())(logits, target, State())
    flat = methods.build("smcl", 3, 4).new_objective()(
        logits.permute(0, 1, 3, 4, 2).reshape(3, 60, 4), target.flatten()
    )
    assert torch.equal(by_pixel.loss, flat.loss)
    assert torch.equal(by_pixel.weights, flat.weights)


def test_evaluate_and_predict(run, root, tmp_path, capsys):
    assert cli.main(["evaluate", str(run), "--json"]) == 0
    found, kept = json.loads(capsys.readouterr().out), json.loads((run / "metrics.json").read_text())
    assert found["top1_error"] == pytest.approx(kept["top1_error"], abs=1e-3)
    big = tmp_path / "big.png"
    Image.open(root / "images" / "dark" / "3.png").resize((400, 320)).save(big)
    assert cli.main(["predict", str(run), str(big), "--out", str(tmp_path / "masks"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    mask = np.asarray(Image.open(row["mask"]))
    assert mask.shape == (320, 400)
    truth = np.asarray(Image.open(root / "masks" / "dark" / "3.png").resize((400, 320), Image.Resampling.NEAREST)) > 0
    assert (mask == truth).mean() > 0.8
    assert cli.main(["predict", str(run), str(big)]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_label_has_no_pixels(tmp_path, capsys):
    assert cli.main(["train", "--data", "digits", "--unit", "pixel", "--out", str(tmp_path / "run")]) == 2
    assert "The unit pixel needs masks" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_the_real_icoseg(tmp_path):
    line = "train --method amcl --network fcn --width 4 --data icoseg --members 2 --epochs 2 --warmup 1 --preset light"
    assert cli.main([*line.split(), "--batch-size", "32", "--quiet", "--out", str(tmp_path / "run")]) == 0
    figures = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert np.array(figures["counts"]).shape == (36, 2)
    assert figures["examples"] > 80

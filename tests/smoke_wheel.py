"""What must work of an installed torchmcl without its repository: `python smoke_wheel.py`, from any folder."""

import json
import subprocess
import sys
from importlib.metadata import entry_points, metadata, version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

import torchmcl
from torchmcl import data, methods, networks, studies
from torchmcl.inference.predictor import Specialists
from torchmcl.training import fit


def command(*words: str, code: int = 0) -> str:
    """What the installed command prints."""
    script = Path(sys.executable).parent / "torchmcl"
    done = subprocess.run([script, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def installed() -> None:
    """It is the wheel that is imported, whole."""
    place = Path(torchmcl.__file__).parent
    assert "site-packages" in place.parts, place
    assert (place / "py.typed").is_file()
    assert torchmcl.__version__ == version("torchmcl")
    assert metadata("torchmcl")["License-Expression"] == "Apache-2.0"
    assert any(script.name == "torchmcl" for script in entry_points(group="console_scripts"))


def trained(folder: Path) -> None:
    """Train, keep, load, ask, from Python and by the command."""
    options = {"members": 2, "epochs": 5, "warmup": 2, "width": 8, "preset": "light", "verbose": False}
    specialists = fit("amcl", "simple_cnn", "digits", out=folder / "run", **options)
    digits = data.load("digits", parts=("test",)).test
    answer = specialists.predict(digits)
    again = Specialists.load(folder / "run").predict(digits)
    assert torch.equal(answer.probabilities, again.probabilities)
    assert answer.probabilities.shape == (359, 10)
    found = json.loads(command("evaluate", str(folder / "run"), "--json"))
    assert found["top1_error"] == specialists.metrics["top1_error"] < 80
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "a.png")
    (row,) = json.loads(command("predict", str(folder / "run"), str(folder / "a.png"), "--json"))
    assert row["label"] in digits.classes


def listed() -> None:
    """Every method, network and study is there with the files that it needs."""
    said = command("ls")
    assert all(name in said for name in (*methods.names(), *networks.NAMES, *data.NAMES))
    said = command("study", "ls")
    assert all(name in said for name in studies.NAMES)


def refused(folder: Path) -> None:
    """Bad input: one line, code 2."""
    said = command("train", "--method", "amlc", "--out", str(folder / "none"), code=2)
    assert "Did you mean 'amcl'?" in said
    assert len(said.splitlines()) == 1
    assert not (folder / "none").exists()


if __name__ == "__main__":
    installed()
    with TemporaryDirectory() as place:
        trained(Path(place))
        listed()
        refused(Path(place))
    print(f"torchmcl {torchmcl.__version__}, torch {torch.__version__}, numpy {np.__version__}: all well")

"""Files that a disk has damaged: read as they were written, or refused in one line, never as something else."""

import contextlib
import io
import random
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from equality import same
from outcomes import one_clear_line
from torchmcl import UsageError, cli, data
from torchmcl.data.image_files import read_image
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import checkpoint
from torchmcl.serialization.hub import read_metrics
from torchmcl.studies import store
from torchmcl.studies.execute import execute
from torchmcl.studies.records import Trained, flow
from torchmcl.studies.spec import Spec
from torchmcl.training import fit

OPTIONS = {"method": "amcl", "network": "mlp", "data": "digits", "data_limit": 200, "width": 8, "members": 2}
OPTIONS |= {"epochs": 2, "warmup": 1, "batch_size": 64}


def mutations(content, seed, flips=16, cuts=5, blocks=4):
    """The bytes emptied, cut off, with one bit flipped, or with a sector of zeros or of noise in them."""
    chance = random.Random(seed)
    yield b""
    yield content[:1]
    yield content[:-1]
    for _ in range(cuts):
        yield content[: chance.randrange(len(content))]
    for _ in range(flips):
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        yield bytes(changed)
    for block in range(blocks):
        at, changed = chance.randrange(len(content)), bytearray(content)
        length = min(512, len(content) - at)
        changed[at : at + length] = bytes(length) if block % 2 else chance.randbytes(length)
        yield bytes(changed)
    yield content[len(content) // 2 :] + content[: len(content) // 2]


COUNTS = {"flips": 16, "cuts": 5, "blocks": 4}
EACH = sum(COUNTS.values()) + 4
FILES = 11  # kinds of files below


def check(path, read, tally, what, alike=same, unchecked=False):
    """Mutate a file in every way -> each time the same content, or one line; the file is as before in the end."""
    content = path.read_bytes()
    expected, said, tries = read(), [], 0
    for changed in mutations(content, path.name, **COUNTS):
        path.write_bytes(changed)
        tries += 1
        try:
            found = read()
        except UsageError as problem:
            said.append(str(problem))
        else:
            assert unchecked or changed == content or alike(found, expected), f"mutation {tries} of {what} is believed"
    path.write_bytes(content)
    assert alike(read(), expected)
    for line in said:
        one_clear_line(line)
    assert not any("report it" in line for line in said), said
    refused = len(said)
    assert refused > tries / 4
    tally(f"{what}: emptied, cut, bits flipped", refused, "one clear error")
    meaning = "read, of the right form" if unchecked else "read, its meaning unchanged"
    if refused < tries:
        tally(f"{what}: emptied, cut, bits flipped", tries - refused, meaning)
    assert tries == EACH


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(**OPTIONS, patience=9, out=folder, verbose=False)
    return folder


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    spec = Spec(OPTIONS, ("flow",))
    result = execute(spec, folder)
    return folder / spec.hash, store.Store(folder / "results").write("study", "smoke", spec, result)


@pytest.mark.parametrize("name", ["last.pt", "best.pt"])
def test_a_checkpoint(name, run, tally):
    path = run / "checkpoints" / name
    check(path, lambda: checkpoint.read(path), tally, "checkpoint")


def test_weights(run, tally):
    def read():
        specialists = Specialists.load(run)
        return specialists.model_config.as_dict(), specialists.ensemble.state_dict()

    check(run / "model.safetensors", read, tally, "weights")


def test_figures_of_a_run(run, tally):
    check(run / "metrics.json", lambda: read_metrics(run), tally, "metrics.json")


def test_a_result(executed, tally):
    check(executed[1], lambda: store.read(executed[1]), tally, "result of a study")


def test_what_members_wanted(executed, tally):
    trained = Trained(None, None, None, None, executed[0], {}, torch.zeros(0))
    check(executed[0] / "flow.npz", lambda: flow(trained, ""), tally, "flow.npz")


def test_how_it_was_trained(executed, tally):
    from torchmcl.serialization import checksum

    check(executed[0] / "trained.json", lambda: checksum.read(executed[0] / "trained.json"), tally, "trained.json")


def test_a_configuration_of_an_unfinished_run(run, tmp_path, tally):
    """To continue is refused, or is the same training: its checkpoint knows what it was begun with."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    path, kept = tmp_path / "run" / "config.yaml", (run / "model.safetensors").read_bytes()

    def go_on():
        with contextlib.redirect_stderr(io.StringIO()) as complaint:
            code = cli.main(["train", "--resume", str(path.parent), "--quiet"])
        if code:
            raise UsageError(complaint.getvalue().removeprefix("torchmcl: ").rstrip("\n"))
        (path.parent / "metrics.json").unlink()
        return (path.parent / "model.safetensors").read_bytes()

    assert go_on() == kept
    check(path, go_on, tally, "config.yaml", alike=bytes.__eq__)


@pytest.fixture
def npz(tmp_path):
    chance = np.random.default_rng(0)
    path = tmp_path / "own.npz"
    np.savez(path, x=chance.normal(size=(60, 5)).astype(np.float32), y=np.arange(60) % 3)
    return path


def test_arrays(npz, tally):
    def read():
        parts = data.load(f"npz:{npz}").parts
        return {name: (part.images, part.target) for name, part in parts.items()}

    check(npz, read, tally, "data, npz")


def test_an_image(tmp_path, tally):
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    check(path, lambda: torch.from_numpy(read_image(path)), tally, "data, PNG")


def test_a_batch_of_cifar(tmp_path, tally):
    """Its pixels have no checksum: what is promised is an error or images of the right kind, and that nothing runs."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    chance = np.random.default_rng(0)
    for name in (*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin"):
        rows = chance.integers(0, 256, (20, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(20) % 10
        (folder / name).write_bytes(rows.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"class{c}" for c in range(10)) + "\n")
    path = folder / "test_batch.bin"
    shape = torch.Size((20, 3, 32, 32))

    def read():
        part = data.load("cifar10", parts=("test",), directory=str(tmp_path)).test
        assert part.images.shape == shape
        assert part.target.max() < 10
        return part.images

    check(path, read, tally, "data, CIFAR in binary (no checksum)", unchecked=True)


def test_through_the_command_line(run, tmp_path, capsys, tally):
    """One line and code 2, whichever file it is."""
    chance, tries = random.Random(0), 0
    for name, line in (
        ("checkpoints/last.pt", "train --resume {run}"),
        ("model.safetensors", "evaluate {run}"),
        ("metrics.json", "evaluate {run}"),
        ("config.yaml", "train --resume {run}"),
        ("model.safetensors", "export {run} {run}/model.pt2"),
    ):
        for empty in (True, False):
            folder = tmp_path / str(tries)
            shutil.copytree(run, folder)
            if "resume" in line:
                (folder / "metrics.json").unlink()
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(b"" if empty else content[: chance.randrange(1, len(content) - 1)])
            before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            capsys.readouterr()
            assert cli.main(line.format(run=folder).split()) == 2
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert said.startswith("torchmcl: ")
            one_clear_line(said.removeprefix("torchmcl: ").removesuffix("\n"))
            assert "report it" not in said
            assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
            tries += 1
    tally("command on a run with a cut or empty file", tries, "one clear error, nothing written")


def test_data_that_changed_under_a_run_is_refused(npz, tmp_path):
    options = {**OPTIONS, "data": f"npz:{npz}", "data_limit": None, "data_validation": 0.0, "out": tmp_path / "run"}
    fit(**options, verbose=False)
    (tmp_path / "run" / "metrics.json").unlink()
    arrays = dict(np.load(npz))
    arrays["y"] = arrays["y"][::-1]
    np.savez(npz, **arrays)
    with pytest.raises(UsageError, match="its run was started with labels"):
        fit(**options, resume=True, verbose=False)


def test_a_run_is_not_continued_as_another(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    for change in ({"epochs": 3}, {"learning_rate": 0.2}, {"beta": 0.5}, {"batch_size": 32}, {"seed": 1}):
        with pytest.raises(UsageError, match=f"started with {next(iter(change))} "):
            fit(**{**OPTIONS, "patience": 9, **change}, out=tmp_path / "run", resume=True, verbose=False)
    fit(**OPTIONS, patience=9, gamma=0.5, workers=0, out=tmp_path / "run", resume=True, verbose=False)  # said otherwise
    assert read_metrics(tmp_path / "run") == read_metrics(run)


def test_enough():
    assert EACH * FILES >= 200

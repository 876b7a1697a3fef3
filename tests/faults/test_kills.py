"""Trainings, studies and exports, killed without warning: they go on to the same bit, and lose nothing."""

import itertools
import random
import shlex

import pytest
import torch

from breaking import Child, command, command_killed_at_write, killed_at_write, save_with_threshold
from equality import same
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization import checkpoint
from torchmcl.serialization.checksum import read as figures
from torchmcl.studies import store

pytestmark = pytest.mark.slow

TRAININGS = {
    "amcl": "--method amcl --network mlp --width 8 --warmup 3 --patience 9 --epochs 8 --checkpoint-steps 3",
    "mcl": "--method mcl --network simple_cnn --width 4 --round 2 --ema 0.9 --epochs 4 --checkpoint-steps 2",
    "one": "--method one --network mlp --width 8 --rampup 2 --optimizer adam --epochs 6 --checkpoint-steps 4",
    # A transform, a logger, gradient accumulation and class weights at once.
    "seams": "--method amcl --network mlp --width 8 --warmup 2 --augment flip,crop --accumulate 2 --tensorboard "
    "--class-weight balanced --epochs 6 --checkpoint-steps 3",
}
COMMON = "--data digits --data.limit 300 --members 2 --batch-size 64 --quiet"
RANDOM = {"amcl": 12, "mcl": 6, "one": 6, "seams": 6}  # kills of a training at random moments
POINTS = ("half", "before", "after")
WRITTEN = [  # short trainings, where each write is killed in turn, and how many writes they have at least
    ("amcl", "--warmup 1", POINTS, 12),
    ("one", "", ("after",), 10),
    ("seams", "--warmup 1", ("before", "after"), 10),
]
STUDIES, EXPORTS, SAVES = 5, 4, 6


def line(name, run):
    return ["train", *shlex.split(f"{TRAININGS[name]} {COMMON}"), "--out", run]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that nobody disturbed."""
    found = {}
    for name in TRAININGS:
        found[name] = tmp_path_factory.mktemp("whole") / name
        child = Child(command, *line(name, found[name]))
        assert child.end() == 0, child.said
    return found


def steps(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return [[event.step for event in seen.Scalars(name)] for name in ("loss", "test/top1_error")]


def same_run(one, two):
    for name in ("config.yaml", "model.safetensors", "metrics.json", "log.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    assert same(checkpoint.read(one / "checkpoints" / "last.pt"), checkpoint.read(two / "checkpoints" / "last.pt"))
    logged = [steps(run / "tensorboard") for run in (one, two) if (run / "tensorboard").exists()]
    assert logged == logged[:1] * len(logged), "an epoch is missing in TensorBoard's log, or there twice"
    # A lock that nobody holds may stay where a run was killed after its last write.
    assert not [path for path in two.rglob(".*") if path.name != ".lock"], "drafts are left"


def all_whole(run):
    """Whatever has its name is whole."""
    for path in run.glob("checkpoints/*.pt"):
        checkpoint.read(path)
    if (run / "metrics.json").exists():
        figures(run / "metrics.json")
        Specialists.load(run)


def logged(run):
    """The epochs whose loss TensorBoard shows, in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return sorted(event.step for event in events.Scalars("loss"))


def go_on(run, name):
    """The command that a person would give next."""
    return ["train", "--resume", run, "--quiet"] if (run / "config.yaml").exists() else line(name, run)


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_killed_at_random_moments(name, whole, tmp_path, tally):
    chance, run, kills, tries = random.Random(name), tmp_path / "0", 0, 0
    while kills < RANDOM[name]:
        child = Child(command, *go_on(run, name))
        if child.kill(after=chance.uniform(0.02, 0.9)):
            kills += 1
            all_whole(run)
        else:  # it was quicker: check it, and begin another
            assert child.end() == 0, child.said
            same_run(whole[name], run)
            run = tmp_path / str(tries)
        tries += 1
        assert tries < 8 * RANDOM[name]
    child = Child(command, *go_on(run, name))
    assert child.end() == 0, child.said
    same_run(whole[name], run)
    if name == "seams":
        assert logged(whole[name]) == list(range(1, 7))
        assert sorted(set(logged(run))) == logged(run), "an epoch is logged twice"
    tally("SIGKILL of a training at a random moment", kills, "goes on, equal to the bit")


@pytest.mark.parametrize(("name", "options", "points", "least"), WRITTEN)
def test_a_training_killed_at_every_write(name, options, points, least, tmp_path, tally):
    """Each file that a short training writes is cut in the middle, left as a draft, or the last that was written."""
    base = shlex.split(f"{TRAININGS[name]} {COMMON} {options} --epochs 2 --checkpoint-steps 4")
    child = Child(command, "train", *base, "--out", tmp_path / "whole")
    assert child.end() == 0, child.said
    for number in itertools.count(1):
        point, run = points[number % len(points)], tmp_path / f"{number}"
        arguments = ["train", *base, "--out", run]
        child = Child(command_killed_at_write, number, point, *arguments)
        if child.end() == 0:  # it has no more writes than that
            break
        assert child.end() == -9, (number, point, child.said)
        all_whole(run)
        child = Child(command, *(["train", "--resume", run] if (run / "config.yaml").exists() else arguments))
        assert child.end() == 0, (number, point, child.said)
        same_run(tmp_path / "whole", run)
    assert number > least
    tally("SIGKILL of a training as it writes a file", number - 1, "goes on, equal to the bit")


def test_a_study_killed_at_random_moments(tmp_path, tally):
    """Results that were there stay as they are; the others come out as if nothing had been."""
    chance, kills, tries = random.Random("study"), 0, 0

    def study(name):
        run = ["study", "run", "confidence", "--workers", "0"]
        return [*run, "--results", tmp_path / f"{name}-results", "--work", tmp_path / f"{name}-work"]

    def results(name):
        return {path: path.read_bytes() for path in (tmp_path / f"{name}-results").rglob("*.json")}

    child = Child(command, *study("whole"))
    assert child.end() == 0, child.said
    name, before = "0", {}
    while kills < STUDIES:
        child = Child(command, *study(name))
        killed = child.kill(after=chance.uniform(0.1, 1.0))
        after = results(name)
        assert before.items() <= after.items(), "an earlier result is lost or changed"
        kills += killed
        name, before = (name, after) if killed else (str(tries), {})
        tries += 1
        assert tries < 8 * STUDIES
    child = Child(command, *study(name))
    assert child.end() == 0, child.said
    assert before.items() <= results(name).items()
    found, expected = (
        store.Store(tmp_path / f"{each}-results").read("confidence", "smoke") for each in (name, "whole")
    )
    assert len(expected) == 2
    assert [{**result, "trained": None} for result in found.values()] == [
        {**result, "trained": None} for result in expected.values()
    ]
    tally("SIGKILL of a study at a random moment", kills, "goes on, equal to the bit, earlier results as they were")


def test_an_export_killed_at_random_moments(whole, tmp_path, tally):
    """The file of the earlier export stays, or the new one is there, whole."""
    chance, path, kills, tries = random.Random("export"), tmp_path / "model.pt2", 0, 0
    child = Child(command, "export", whole["one"], path)
    assert child.end() == 0, child.said
    while kills < EXPORTS:
        kills += Child(command, "export", whole["one"], path).kill(after=chance.uniform(0.1, 1.5))
        tries += 1
        assert tries < 8 * EXPORTS
        program = torch.export.load(path).module()
        assert program(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))[0].shape == (2,)
    child = Child(command_killed_at_write, 1, "half", "export", whole["one"], tmp_path / "new.pt2")
    assert child.end() == -9
    assert not (tmp_path / "new.pt2").exists()
    tally("SIGKILL of an export", kills + 1, "the earlier file or the new one, whole")


def test_a_model_saved_over_itself(whole, tmp_path, tally):
    """The old one or the new one, at whatever write it ends."""
    Specialists.load(whole["amcl"]).save(tmp_path)
    thresholds = {0.0}
    for number in range(1, SAVES + 1):
        child = Child(killed_at_write, 1 + number % 2, POINTS[number % 3], save_with_threshold, tmp_path, number / 10)
        assert child.end() == -9, child.said
        thresholds.add(Specialists.load(tmp_path).model_config.rejection.threshold)
    assert len(thresholds) > 2
    tally("SIGKILL of a model as it is saved over itself", SAVES, "the earlier model or the new one, whole")


def test_enough():
    writes = sum(least for *_, least in WRITTEN)
    assert sum(RANDOM.values()) + writes + STUDIES + EXPORTS + 1 + SAVES >= 50

"""Trainings on data sets and loaders of one's own, and with other samplings: as from memory, and resumed exactly."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from equality import same
from stopping import stopped_and_continued
from torchmcl import UsageError, cli, data, fit
from torchmcl.data.examples import Examples
from torchmcl.training.progress import TrainingProgress

# Starting a worker from a process with threads warns from Python 3.12 on; torch does so by itself.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
TINY = {"network": "mlp", "members": 2, "epochs": 3, "width": 8, "verbose": False}
CLASSES = tuple(map(str, range(10)))


def digits():
    """(images, target) of training, of validation and of test."""
    few = data.load("digits", limit=200, validation=0.2)
    return [(part.images, part.target) for part in (few.train, few.validation, few.test.subset(range(60)))]


def loaders(shuffle=True, **options):
    train, validation, test = (TensorDataset(images.float() / 16, target) for images, target in digits())
    first = DataLoader(train, batch_size=60, shuffle=shuffle, **options)
    return data.from_loaders(first, DataLoader(test, 50), DataLoader(validation, 50), classes=CLASSES)


class Noisy(Dataset):
    """Augments by itself, from all global generators, and has a label for each example."""

    def __init__(self, images, target):
        self.images, self.targets = images, target

    def __len__(self):
        return len(self.images)

    def __getitem__(self, at):
        shift = int(torch.randint(3, ())) + np.random.randint(3) + random.randint(0, 2)  # noqa: NPY002
        return self.images[at].roll(shift, 2), int(self.targets[at])


def files_of(run):
    return [(run / name).read_bytes() for name in ("metrics.json", "log.csv", "model.safetensors")]


@forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("method", ["amcl", "mcl"])
def test_streaming_is_training_from_memory(method, workers):
    train, validation, test = digits()
    streamed = data.from_dataset(*(TensorDataset(*part) for part in (train, test, validation)), classes=CLASSES)
    held = data.from_arrays(*train, *test, classes=CLASSES)
    held = data.DataSet("held", {**held.parts, "validation": data.Examples(*validation, CLASSES)}, held.preprocess)
    one = fit(method, data=streamed, workers=workers, **TINY)
    two = fit(method, data=held, **TINY)
    assert same(one.ensemble.state_dict(), two.ensemble.state_dict())
    assert one.metrics == two.metrics
    assert same(one.predict(streamed.test).probabilities, two.predict(test[0]).probabilities)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_augments_resumes_exactly(workers, tmp_path, monkeypatch):
    train, _, test = digits()
    made = data.from_dataset(Noisy(*train), TensorDataset(*test), 0.1)
    options = {**TINY, "data": made, "batch_size": 50, "checkpoint_steps": 2}
    fit("smcl", out=tmp_path / "whole", workers=0, **options)

    def continued(resume):
        fit("smcl", out=tmp_path / "parts", resume=resume, workers=workers, **options)

    assert stopped_and_continued(monkeypatch, {1, 3, 5}, continued) == 3
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "parts")
    plain = data.from_dataset(TensorDataset(*train), TensorDataset(*test), 0.1)
    assert not same(fit("smcl", **{**options, "data": plain}).metrics["nll"], json_of(tmp_path / "whole")["nll"])


def json_of(run):
    return json.loads((run / "metrics.json").read_text())


SHARED = """
import faulthandler, sys
faulthandler.dump_traceback_later(150, exit=True)  # says where a process hangs
sys.path[:0] = {paths!r}
from test_own_data import Noisy, digits
from torch.utils.data import TensorDataset
from torchmcl import data, fit

train, _, test = digits()
made = data.from_dataset(Noisy(*train), TensorDataset(*test), 0.1)
options = dict(members=2, epochs=3, width=8, exchange="none", batch_size=50, sampling={sampling!r}, accelerator="cpu")
fit("amcl", "mlp", made, devices=int(sys.argv[1]), workers=1, out=sys.argv[2], verbose=False, **options)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["examples", "classes"])
def test_two_processes_share_what_one_would_read(sampling, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SHARED.format(paths=[str(folder) for folder in Path(__file__).parents[:2]], sampling=sampling))
    for devices in (1, 2):
        command = [sys.executable, str(script), str(devices), str(tmp_path / str(devices))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
    one, two = (json_of(tmp_path / name) for name in ("1", "2"))
    assert one["sets"] == two["sets"]
    assert one["flags"] == two["flags"]
    assert two["nll"] == pytest.approx(one["nll"], rel=1e-4)
    rows = [(tmp_path / name / "log.csv").read_text().splitlines()[1:] for name in ("1", "2")]
    losses = [[float(row.split(",")[2]) for row in part] for part in rows]
    np.testing.assert_allclose(*losses, rtol=1e-4)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_at_the_start_of_the_epoch(workers, tmp_path, monkeypatch, capsys):
    options = {**TINY, "verbose": True, "checkpoint_steps": 1}
    fit("amcl", data=loaders(num_workers=workers), out=tmp_path / "whole", **options)

    def continued(resume):
        fit("amcl", data=loaders(num_workers=workers), out=tmp_path / "parts", resume=resume, **options)

    assert stopped_and_continued(monkeypatch, {1, 5, 9}, continued) == 3  # in epochs 1, 2 and 3
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "parts")
    said = capsys.readouterr().out
    for epoch in (1, 2, 3):
        assert f"Stopped in epoch {epoch}, which is not saved" in said
    assert all(row["at"]["batch"] == 0 for row in [torch.load(tmp_path / "parts/checkpoints/last.pt")])


def test_a_loader_in_order_equals_arrays_of_one_batch():
    """Where an epoch is a single batch, its order does not matter but for rounding."""
    (train, target), _, (x_test, y_test) = digits()
    loader = DataLoader(TensorDataset(train.float(), target), len(train), shuffle=True)
    test = DataLoader(TensorDataset(x_test.float(), y_test), 7)
    options = {**TINY, "epochs": 2}
    one = fit("ie", data=data.from_loaders(loader, test, classes=CLASSES), **options)
    held = data.from_arrays(train.float(), target, x_test.float(), y_test, classes=CLASSES)
    two = fit("ie", data=held, batch_size=len(train), **options)
    torch.testing.assert_close(one.ensemble.state_dict(), two.ensemble.state_dict(), rtol=1e-3, atol=1e-4)
    assert one.metrics["examples"] == two.metrics["examples"] == 60
    assert one.metrics["top1_error"] == pytest.approx(two.metrics["top1_error"], abs=2)


def test_the_caller_s_generators_are_left_alone_by_loaders():
    torch.manual_seed(4), np.random.seed(4), random.seed(4)  # noqa: NPY002
    expected = torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(4), np.random.seed(4), random.seed(4)  # noqa: NPY002
    fit("ie", data=loaders(), **{**TINY, "epochs": 1})
    assert (torch.rand(1), np.random.rand(), random.random()) == expected  # noqa: NPY002


class Stream(IterableDataset):
    def __iter__(self):
        images, target = digits()[0]
        return zip(images.float(), target, strict=True)


def test_a_loader_of_unknown_length(tmp_path, capsys):
    stream = DataLoader(Stream(), batch_size=64)
    made = data.from_loaders(stream, stream, classes=CLASSES)
    found = fit("smcl", data=made, out=tmp_path / "run", **{**TINY, "verbose": True})
    assert found.metrics["examples"] == len(digits()[0][0])
    assert "epoch 3/3" in capsys.readouterr().out


def test_a_bar_without_a_total():
    progress = TrainingProgress()
    progress.progress.disable = False
    progress.begin(1, 3, 0, None)
    progress.step(torch.tensor(0.5), torch.ones(1, 2), "")
    task = progress.progress.tasks[0]
    assert (task.total, task.completed) == (None, 1)


def test_transforms_patience_and_accumulation_work_with_loaders():
    options = {**TINY, "patience": 2, "accumulate": 2, "augment": "crop", "network": "simple_cnn"}
    plain, moved = fit("ie", data=loaders(), **{**options, "augment": None}), fit("ie", data=loaders(), **options)
    assert plain.metrics["nll"] != moved.metrics["nll"]
    calibrated = moved.calibrate(loaders(), coverage=0.5)
    assert calibrated.threshold > 0


def refused(message, method="ie", **options):
    with pytest.raises(UsageError, match=message) as caught:
        fit(method, **{**TINY, **options})
    assert "\n" not in str(caught.value)


def test_what_loaders_cannot_do():
    made = loaders()
    for method in ("mcl", "mcl_kd"):
        refused(f"method {method} needs indexed examples.*from_dataset", method, data=made)
    refused("cannot be divided among several processes.*from_dataset", data=made, devices=2, accelerator="cpu")
    refused("does not support sampling=classes.*from_dataset", data=made, sampling="classes")
    refused("Leave batch_size=32 out", data=made, batch_size=32)


def test_data_that_must_be_wrapped_or_lacks_a_test():
    pairs = TensorDataset(*digits()[0])
    refused(r"TensorDataset directly. Wrap it in data.from_dataset\(…\)", data=pairs)
    refused(r"DataLoader directly. Wrap it in data.from_loaders\(…\)", data=DataLoader(pairs))
    refused("loaders has no test set", data=data.from_loaders(DataLoader(pairs), classes=CLASSES))
    refused("arrays has no test set", data=data.from_arrays(*digits()[0], test=0))


def test_a_run_on_loaders_says_what_it_was_trained_on(tmp_path, capsys):
    fit("ie", data=loaders(), out=tmp_path / "run", **{**TINY, "epochs": 1})
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert "trained on a DataSet object, 'loaders'" in error
    assert error.count("\n") == 1
    assert fit("ie", data=loaders(), out=tmp_path / "run", resume=True, **{**TINY, "epochs": 1}).metrics["epochs"] == 1


def test_a_loader_that_fails_in_the_middle_leaves_a_run_that_resumes(tmp_path):
    class Failing(TensorDataset):
        calls = 0

        def __getitem__(self, at):
            Failing.calls += 1
            if Failing.calls == 300:
                raise OSError("gone")
            return super().__getitem__(at)

    train, _, test = digits()
    good = [TensorDataset(images.float(), target) for images, target in (train, test)]

    def made(kind):
        first = DataLoader(kind(*good[0].tensors), batch_size=60, shuffle=True)
        return data.from_loaders(first, DataLoader(good[1], 50), classes=CLASSES)

    with pytest.raises(UsageError, match="failed after 1 batches with OSError: gone"):
        fit("ie", data=made(Failing), out=tmp_path / "run", **TINY)
    resumed = fit("ie", data=made(TensorDataset), out=tmp_path / "run", resume=True, **TINY)
    assert same(resumed.ensemble.state_dict(), fit("ie", data=made(TensorDataset), **TINY).ensemble.state_dict())


def test_sampling_by_class_is_another_training_and_resumes_exactly(tmp_path, monkeypatch):
    options = {**TINY, "data": "digits", "data_limit": 200, "batch_size": 50}
    plain = fit("amcl", out=tmp_path / "plain", **options)
    fit("amcl", out=tmp_path / "whole", sampling="classes", **options)
    assert plain.metrics["nll"] != json_of(tmp_path / "whole")["nll"]

    def continued(resume):
        fit("amcl", out=tmp_path / "parts", resume=resume, sampling="classes", **options)

    assert stopped_and_continued(monkeypatch, {2, 7}, continued) == 2
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "parts")


def test_sampling_by_class_evens_out_what_members_take(capsys, tmp_path):
    rare = data.load("digits", limit=300)
    label = rare.train.target
    kept = torch.cat([(label == c).nonzero()[: 3 if c else 30, 0] for c in range(10)])
    made = data.DataSet("rare", {**rare.parts, "train": rare.train.subset(kept)}, "gcn")
    shown = np.array(fit("ie", data=made, sampling="classes", **TINY).metrics["assigned"])[:, 0]
    assert shown.sum() == len(kept)
    assert shown.max() - shown.min() <= 1
    assert cli.main(["train", "--sampling", "classe", "--out", str(tmp_path / "run")]) == 2
    assert "sampling" in capsys.readouterr().err


@forks
def test_a_folder_that_is_not_read_into_memory_trains_alike(tmp_path):
    from PIL import Image

    images, target = digits()[0]
    for at, (image, label) in enumerate(zip(images, target.tolist(), strict=True)):
        path = tmp_path / "photos" / str(label) / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image[0] * 15).numpy()).save(path)
    options = {**TINY, "network": "simple_cnn", "data": f"folder:{tmp_path / 'photos'}", "epochs": 2}
    held, streamed = fit("ie", **options), fit("ie", data_in_memory=0, **options)
    assert same(held.ensemble.state_dict(), streamed.ensemble.state_dict())
    assert held.metrics == streamed.metrics
    with pytest.raises(UsageError, match="in_memory >= 0, got -1"):
        fit("ie", data_in_memory=-1, **options)


def test_loaders_of_floats_train_like_arrays():
    """In the same order, one batch per epoch: the same units, weights, density and metrics."""
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(90, 2, generator=generator)
    y = 1000 + 50 * x[:, :1] * torch.randn(90, 1, generator=generator).sign()
    parts = {"train": slice(0, 60), "test": slice(60, 75), "validation": slice(75, 90)}
    options = {"members": 3, "epochs": 3, "width": 8, "score": "bce", "verbose": False}
    loaders = {name: DataLoader(TensorDataset(x[at], y[at]), 60) for name, at in parts.items()}
    one = fit("annealed", "mlp", data.from_loaders(**loaders), **options)
    train, test, validation = (Examples(x[at], y[at], ()) for at in parts.values())
    held = data.DataSet("held", {"train": train, "test": test, "validation": validation}, "none")
    two = fit("annealed", "mlp", held, batch_size=60, **options)
    assert one.method.task.mean == pytest.approx([float(y[:60].mean())])
    assert one.method.task.bandwidth == pytest.approx(two.method.task.bandwidth, rel=1e-3)
    for name in ("oracle_rmse", "rmse", "crps", "nll", "examples"):
        assert one.metrics[name] == pytest.approx(two.metrics[name], rel=1e-3), name
    few = data.from_loaders([(x[:2], y[:2])], [(x, y)])
    with pytest.raises(UsageError, match="at least 3 training examples, one per member"):
        fit("annealed", "mlp", few, **options)

"""A LightningModule that does what `fit` does."""

import csv
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torchmcl import Ensemble, Task, UsageError, data, fit, methods
from torchmcl.data.loader import Loader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger

    from torchmcl.lightning import SpecialistModule

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:.*have no .val_dataloader"),
]


def trainer(**options):
    usual = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return Trainer(**{**usual, "enable_checkpointing": False, **options})


def digits(indexed=False, part="train"):
    examples = getattr(data.load("digits", limit=200), part)
    parts = [examples.images.float() / 16, examples.target]
    return TensorDataset(*parts, torch.arange(len(examples))) if indexed else TensorDataset(*parts)


def module(name="amcl", **options):
    return SpecialistModule(name, "mlp", members=2, classes=10, inputs=64, width=8, **options)


@pytest.mark.parametrize("name", methods.names())
def test_fast_dev_run(name):
    indexed = name in ("mcl", "mcl_kd")
    network = "simple_cnn" if name in ("vmcl", "one") else "mlp"
    options = {"width": 4, "channels": 1} if network == "simple_cnn" else {"width": 8, "inputs": 64}
    built = SpecialistModule(name, network, members=2, classes=10, **options)
    loader = DataLoader(digits(indexed), batch_size=32)
    run = trainer(fast_dev_run=True)
    run.fit(built, loader, DataLoader(digits(part="test"), batch_size=32))
    assert run.callback_metrics["train_loss"].isfinite()
    assert 0 <= run.callback_metrics["val_top1_error"] <= 1
    run.test(built, DataLoader(digits(part="test"), batch_size=32), verbose=False)
    assert 0 <= run.callback_metrics["test_oracle_error"] <= run.callback_metrics["test_top1_error"] <= 1
    (probabilities,) = run.predict(built, DataLoader(digits(part="test"), batch_size=32))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(32))


class Epochs:
    """The batches of fit's own loader in the epoch that a module is in."""

    def __init__(self, loader, module):
        self.loader, self.module = loader, module

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        batches = self.loader.epoch(self.module.current_epoch + 1)
        return ((batch.x, batch.target, batch.index) for batch in batches)


@pytest.mark.parametrize("name", ["amcl", "smcl", "mcl", "mcl_kd"])
def test_the_losses_of_fit(name, tmp_path):
    options = {"learning_rate": 0.05, "schedule": "cosine"}
    set_ = data.load("digits", limit=200)
    fit(
        name,
        "mlp",
        set_,
        members=2,
        epochs=4,
        batch_size=50,
        width=8,
        exchange="none",
        seed=3,
        out=tmp_path / "run",
        verbose=False,
        **options,
    )
    with open(tmp_path / "run" / "log.csv") as file:
        expected = [row["loss"] for row in csv.DictReader(file)]
    built = module(name, exchange="none", seed=3, **options)
    loader = Loader(set_.train, batch_size=50, seed=3, preprocess=set_.preprocess)
    logger = CSVLogger(tmp_path, name="lightning")
    trainer(max_epochs=4, logger=logger).fit(built, Epochs(loader, built))
    with open(tmp_path / "lightning" / "version_0" / "metrics.csv") as file:
        got = [row["train_loss_epoch"] for row in csv.DictReader(file) if row["train_loss_epoch"]]
    assert len(got) == len(expected) == 4
    for one, other in zip(got, expected, strict=True):
        assert float(one) == pytest.approx(float(other), abs=1e-5)


def test_a_checkpoint_has_the_memory(tmp_path):
    built = module(warmup=1)
    run = trainer(max_epochs=2)
    run.fit(built, DataLoader(digits(), batch_size=32))
    assert built.phase == "memory-based"
    run.save_checkpoint(tmp_path / "last.ckpt")
    again = module(warmup=1)
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    again.load_state_dict(state)
    assert torch.equal(again.objective.memory.flags, built.objective.memory.flags)
    assert again.phase == "memory-based"
    resumed = trainer(max_epochs=3)
    resumed.fit(again, DataLoader(digits(), batch_size=32), ckpt_path=tmp_path / "last.ckpt")
    assert torch.equal(again.objective.memory.counts, built.objective.memory.counts)


@dataclass(frozen=True)
class SquaredError(Task):
    outputs: int = 1

    def loss(self, outputs, target, state):
        return (outputs - target).square().mean(2)


@pytest.mark.parametrize("name", ["smcl", "relaxed"])
def test_two_modes_through_lightning(name):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(640, 2, generator=generator)
    target = torch.randint(2, (640, 1), generator=generator) * 2.0 - 1
    method = methods.build(name, members=2, task=SquaredError())
    built = SpecialistModule(method, lambda outputs: torch.nn.Linear(2, outputs), learning_rate=0.05)
    run = trainer(max_epochs=10)
    loader = DataLoader(TensorDataset(x, target), batch_size=32)
    run.fit(built, loader, loader)
    assert run.callback_metrics["val_oracle_loss"] < 0.1
    assert run.callback_metrics["val_ensemble_loss"] > 0.8  # one prediction cannot be near both modes


@pytest.mark.parametrize(
    ("option", "place"),
    [("clip", "gradient_clip_val"), ("batch_size", "DataLoader"), ("ema", "WeightAveraging"), ("epochs", "max_epochs")],
)
def test_options_that_a_trainer_has_itself(option, place):
    with pytest.raises(UsageError, match=f"no option {option}. Use .*{place}"):
        module(**{option: 1})


def test_a_named_optimiser():
    run = trainer(max_epochs=1)
    run.fit(module(optimizer="adamw", learning_rate=0.01), DataLoader(digits(), batch_size=32))
    assert isinstance(run.optimizers[0], torch.optim.AdamW)


def test_bad_batches():
    with pytest.raises(UsageError, match="batches"):
        trainer(fast_dev_run=True).fit(module(), DataLoader(torch.zeros(8, 64), batch_size=4))
    with pytest.raises(UsageError, match=r"index.* for mcl, which stores values per example"):
        trainer(fast_dev_run=True).fit(module("mcl"), DataLoader(digits(), batch_size=4))


def test_an_ensemble_and_an_optimiser_of_ones_own():
    method = methods.build("smcl", 2, 10)
    ensemble = Ensemble.build(method, "mlp", inputs=64, width=8)
    built = SpecialistModule(method, ensemble, optimizer=lambda named: torch.optim.Adam([p for _, p in named], lr=0.01))
    run = trainer(max_epochs=1)
    run.fit(built, DataLoader(digits(), batch_size=32))
    assert isinstance(run.optimizers[0], torch.optim.Adam)


TWO = """
import warnings
warnings.simplefilter("ignore")
import torch
from torch.utils.data import DataLoader, TensorDataset
from lightning.pytorch import Trainer
from torchmcl import data
from torchmcl.lightning import SpecialistModule

digits = data.load("digits", limit=200).train
loader = DataLoader(TensorDataset(digits.images.float() / 16, digits.target), batch_size=16)
module = SpecialistModule("amcl", "mlp", members=2, classes=10, inputs=64, width=8, warmup=1)
options = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, enable_checkpointing=False)
trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, **options)
trainer.fit(module, loader)
memory = module.objective.memory
weights = torch.cat([p.detach().flatten() for p in module.ensemble.parameters()])
gathered = module.all_gather(weights)
assert torch.equal(gathered[0], gathered[1])
assert int(memory.counts.sum()) == len(digits), memory.counts
assert memory.fixed
print(f"done {trainer.global_rank}\\n", end="")  # one write, because the processes share a stream
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
    import os
    import subprocess
    import sys

    (tmp_path / "two.py").write_text(TWO)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "two.py")], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "done 0" in done.stdout

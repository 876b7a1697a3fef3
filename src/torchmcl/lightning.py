"""A LightningModule for specialist ensembles, for projects that already use Lightning's `Trainer`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from torchmcl import methods
from torchmcl.ensemble import Ensemble, Network
from torchmcl.errors import UsageError
from torchmcl.objectives.dataset_pass import DatasetPass, run_dataset_passes
from torchmcl.objectives.objective import phase_of
from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.state import State
from torchmcl.training.loop import build_optimizer
from torchmcl.training.recipe import Recipe

RECIPE = ("learning_rate", "backbone_rate", "momentum", "weight_decay", "schedule", "drop_every", "drop_to")
# Options of `fit` that SpecialistModule does not accept, and their replacements.
REPLACEMENTS = {
    "epochs": "Trainer(max_epochs=…)",
    "clip": "Trainer(gradient_clip_val=…)",
    "accumulate": "Trainer(accumulate_grad_batches=…)",
    "ema": "the callback WeightAveraging",
    "patience": "the callback EarlyStopping",
    "batch_size": "your DataLoader",
    "augment": "your DataLoader",
    "sampling": "the sampler of your DataLoader",
    "class_weight": "methods.build(…, task=Classification(classes, class_weight=…))",
}


class SpecialistModule(LightningModule):
    """A method, an ensemble and a recipe as a LightningModule with the same objective, combiner and metrics as `fit`.

    Batches are (x, target). Methods that store values per example (MCL, MCL-KD) need (x, target, index), and memories
    that count groups of images need (x, target, index, group). Preprocess x in the data loader. The objective is a
    submodule, so the checkpoints of the `Trainer` contain its memory. The module logs `train_loss`, the share of the
    examples that each member takes, and the metrics of the task as fractions, such as `val_top1_error`.

    Args:
        method: a name in `methods.names()`, or a `Method`
        network: an `Ensemble`, or a name, a callable or a list with one of these per member, see `Ensemble.build`
        members: number of members if `method` is a name; 5 by default
        classes: number of classes if `method` is a name; 10 by default
        exchange: kind of exchange between members; by default, the method's exchange
        seed: seed of the initial weights
        optimizer: sgd, adam or adamw, or a callable that takes all (name, parameter) pairs and returns an optimizer
        options: options of a method or network given by name, and the options learning_rate, momentum, weight_decay,
            schedule, drop_every and drop_to of `fit`

    >>> module = SpecialistModule("amcl", "mlp", members=3, classes=10, inputs=64, width=8, learning_rate=0.05)
    >>> module(torch.zeros(2, 64)).logits.shape
    torch.Size([3, 2, 11])
    """

    def __init__(
        self,
        method: str | methods.Method = "amcl",
        network: Network | Sequence[Network] | Ensemble = "simple_cnn",
        *,
        members: int | None = None,
        classes: int | None = None,
        exchange: str = "default",
        seed: int = 0,
        optimizer: str | Callable[[list[tuple[str, torch.nn.Parameter]]], Optimizer] = "sgd",
        **options: Any,
    ) -> None:
        super().__init__()
        for name, replacement in REPLACEMENTS.items():
            if name in options:
                raise UsageError(f"SpecialistModule has no option {name}. Use {replacement} instead.")
        recipe: dict[str, Any] = {name: options.pop(name) for name in RECIPE if name in options}
        if isinstance(optimizer, str):
            recipe["optimizer"] = optimizer
        self.recipe, self.optimizer = Recipe(**recipe), optimizer
        if isinstance(method, str):
            own = {name: options.pop(name) for name in methods.options(method) if name in options}
            method = methods.build(method, members or 5, classes or 10, **own)
        elif members not in (None, method.members) or classes not in (None, method.classes):
            raise UsageError(
                f"The method has {method.members} members and {method.classes} classes. Omit members and classes."
            )
        self.method = method
        self.objective = method.new_objective()
        if not isinstance(network, Ensemble):
            network = Ensemble.build(method, network, exchange=exchange, seed=seed, **options)
        elif options:
            raise UsageError(f"Cannot apply options to an existing Ensemble. Omit {', '.join(options)}.")
        if len(network.bodies) != method.members:
            raise UsageError(f"Expected an ensemble of {method.members} members, got {len(network.bodies)}.")
        self.ensemble = network

    def forward(self, x: Tensor) -> EnsembleOutput:
        """Compute the members' outputs (M, B, …) for a batch (B, …)."""
        return self.ensemble(x)

    def training_state(self) -> State:
        """Return a `State` with the current epoch and the number of epochs of the `Trainer`."""
        epochs = self.trainer.max_epochs
        if epochs is None or epochs < 1:
            raise UsageError("Warm-up and learning rate depend on the number of epochs. Set Trainer(max_epochs=…).")
        return State(self.current_epoch + 1, epochs)

    def on_train_epoch_start(self) -> None:
        """Run the passes over the training set that the objective needs before an epoch."""
        if any(isinstance(part, DatasetPass) for part in self.objective.modules()):
            with self.trainer.precision_plugin.forward_context():
                run_dataset_passes(self.objective, self.ensemble, self._indexed(), self.training_state())

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Compute and log the loss of a batch."""
        x, target, index, group = self._parts(batch)
        state = replace(self.training_state(), index=index, group=group)
        outcome: Outcome = self.objective(self(x), target, state)
        shares = {f"share_{m}": share for m, share in enumerate(outcome.weights.mean(1), start=1)}
        self.log("train_loss", outcome.loss, on_step=True, on_epoch=True, batch_size=len(x), prog_bar=True)
        self.log_dict(shares, on_step=False, on_epoch=True, batch_size=len(x))
        return outcome.loss

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log the metrics of a validation batch."""
        self._measure("val", batch)

    def test_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Log the metrics of a test batch."""
        self._measure("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the combined prediction for a batch: probabilities (B, C, …) if the task has classes."""
        x = batch if isinstance(batch, Tensor) else batch[0]
        return self.method.combine(self(x))

    def configure_optimizers(self) -> Any:
        """Return the optimiser and the learning rate schedule of the recipe."""
        if not isinstance(self.optimizer, str):
            built = build_optimizer(self.optimizer, self.ensemble)
        else:
            built = self.recipe.build(self.recipe.groups(self.ensemble))
        recipe = replace(self.recipe, epochs=self.training_state().epochs)
        schedule = LambdaLR(built, lambda epoch: recipe.factor(min(epoch + 1, recipe.length())))
        return {"optimizer": built, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}

    @property
    def phase(self) -> str:
        """The name of the objective's current phase, or an empty string if it has no phases."""
        return phase_of(self.objective)

    def _measure(self, part: str, batch: Sequence[Tensor]) -> None:
        x, target, *_ = self._parts(batch)
        output = EnsembleOutput.of(self(x))
        metrics = self.method.task.metrics(output, self.method.combine(output), target)
        for name, values in metrics.items():  # one value per example that has a label
            if len(values):
                self.log(f"{part}_{name}", values.mean(), on_epoch=True, batch_size=len(values), sync_dist=True)

    def _parts(self, batch: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        if not isinstance(batch, list | tuple) or len(batch) not in (2, 3, 4) or not isinstance(batch[0], Tensor):
            raise UsageError(f"Expected batches (x, target[, index[, group]]), got {type(batch).__name__}.")
        return batch[0], batch[1], *(*batch[2:], None, None)[:2]

    def _indexed(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        loader: Any = self.trainer.train_dataloader
        for batch in loader:
            batch = self.transfer_batch_to_device(batch, self.device, 0)
            x, target, index, _ = self._parts(self.trainer.precision_plugin.convert_input(batch))
            if index is None:
                raise UsageError(
                    f"Expected batches (x, target, index) for {self.method.name}, which stores values per example, "
                    "got (x, target). Add the index of each example in the training set."
                )
            yield x, target, index

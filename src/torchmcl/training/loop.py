import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics import Metric

from torchmcl import metrics
from torchmcl._utils.distributed import highest, total
from torchmcl._utils.randomness import seed_for, seed_of
from torchmcl.data.external import ExternalLoader
from torchmcl.data.loader import Batch, Loader
from torchmcl.ensemble import Ensemble
from torchmcl.errors import DivergedError, UsageError
from torchmcl.methods import Method
from torchmcl.objectives.dataset_pass import run_dataset_passes
from torchmcl.objectives.objective import memory_of, phase_of
from torchmcl.structures.state import State
from torchmcl.training import guardrails
from torchmcl.training.callbacks import Callbacks
from torchmcl.training.evaluate import evaluate
from torchmcl.training.extra_metrics import ExtraMetrics, flat
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.recipe import Recipe
from torchmcl.training.resume import Checkpoints
from torchmcl.training.signals import Interrupted, Stop
from torchmcl.training.step import Step, group_of

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from torchmcl.training.device import OneDevice

OptimizerBuilder = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]
Schedule = Callable[[int, int], float]


@dataclass
class Position:
    """The progress of a training. Every field is stored in checkpoints.

    `epoch` is the current epoch and `batch` the number of its finished batches. `loss`, `taken` and `wanted` (groups,
    M) are sums over the current epoch: `taken` counts the examples that each member took, `wanted` those it would have
    taken by loss, which differs where a memory assigns. `history` has one row per finished epoch, `assignment_history`
    the `wanted` of each.
    """

    epoch: int = 1
    batch: int = 0
    loss: float = 0.0
    taken: Tensor = field(default_factory=lambda: torch.zeros(0))
    wanted: Tensor = field(default_factory=lambda: torch.zeros(0))
    assignment_history: list[Tensor] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    best: float = float("inf")
    best_epoch: int = 0


class Training:
    """One training: a pure function of data, method, recipe and seed, however often it is stopped and continued.

    Each step draws its randomness from (seed, epoch, batch, process), the order of the examples from (seed, epoch) and
    the learning rate from the epoch, so a checkpoint needs no generator, no sampler and no scheduler. The objective is
    the training's own, made anew from the method.
    """

    def __init__(
        self,
        fabric: "Fabric | OneDevice",
        method: Method,
        ensemble: Ensemble,
        recipe: Recipe,
        *,
        train: Loader | ExternalLoader,
        everything: Loader | ExternalLoader,
        validation: Loader | ExternalLoader | None = None,
        groups: tuple[str, ...],
        seed: int,
        progress: TrainingProgress,
        checkpoints: Checkpoints | None = None,
        compile: bool = False,
        lean: bool = False,
        optimizer: OptimizerBuilder | None = None,
        schedule: Schedule | None = None,
        callbacks: Callbacks | None = None,
        extra: Mapping[str, Metric] | None = None,
    ) -> None:
        self.fabric, self.method, self.recipe, self.progress = fabric, method, recipe, progress
        self.train, self.everything, self.validation = train, everything, validation
        self.groups, self.seed, self.epochs = groups, seed, recipe.length()
        self.checkpoints = checkpoints or Checkpoints()
        self.plain = ensemble.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objective = method.new_objective().to(fabric.device).train()
        self.settled = method.schedule_end(self.epochs)
        self.averaged = self._average(recipe.ema)
        module = cast(nn.Module, torch.compile(ensemble)) if compile else ensemble
        built = recipe.build(ensemble.parameters()) if optimizer is None else own_optimizer(optimizer, ensemble)
        self.rates, self.schedule = [group["lr"] for group in built.param_groups], schedule
        self.ensemble: Any
        self.optimizer: Any
        self.ensemble, self.optimizer = fabric.setup(module, built)
        self.step = Step(
            fabric,
            ensemble,
            self.ensemble,
            self.objective,
            self.optimizer,
            accumulate=recipe.accumulate,
            clip=recipe.clip,
            lean=lean,
            mean_weight=train.mean_weight,
        )
        self.at = Position(taken=self._nothing(), wanted=self._nothing())
        self.last_taken = self._nothing()
        self.stop = Stop()
        self.callbacks = callbacks or Callbacks(())
        self.extra = ExtraMetrics(extra or {}, fabric.device)

    @property
    def signal(self) -> int:
        """The signal that asks to stop, or 0."""
        return self.stop.number

    @signal.setter
    def signal(self, number: int) -> None:
        self.stop.number = number

    @property
    def model(self) -> nn.Module:
        """What is evaluated and kept: the ensemble, or the moving average of its weights."""
        return self.ensemble if self.averaged is None else self.averaged.module

    @property
    def kept(self) -> Ensemble:
        """The same, as it was built, outside the engine."""
        return self.plain if self.averaged is None else cast(Ensemble, self.averaged.module)

    def run(self, until: int | None = None) -> None:
        """Train from wherever the position is to the end, or to that of the epoch `until`, beyond the schedule too.

        A signal ends it only while `stop` is listening.
        """
        with self.progress:
            self._say(guardrails.unsettled(self.method, self.epochs))
            self.callbacks.start(self)
            for epoch in range(self.at.epoch, (self.epochs if until is None else until) + 1):
                if self._patience_ends(epoch - 1):  # here, since a resumed training may have come so far
                    self.progress.line(f"No better top-1 error for {self.recipe.patience} epochs: stopping.")
                    break
                self._epoch(State(epoch, self.epochs))
                self._finish(epoch)
                self.callbacks.tell("on_epoch_end", dict(self.at.history[-1]))
            self.callbacks.tell("on_train_end")

    def _patience_ends(self, epoch: int) -> bool:
        return (
            self.recipe.patience is not None and epoch - max(self.at.best_epoch, self.settled) >= self.recipe.patience
        )

    def _epoch(self, state: State) -> None:
        examples = ((batch.x, batch.target, batch.index) for batch in self.everything.epoch())
        run_dataset_passes(self.objective, self.ensemble, examples, state)
        self.ensemble.train()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor(state.at_epoch())
        self.progress.begin(state.at_epoch(), self.epochs, self.at.batch, length_hint(self.train, 0) or None)
        loss = torch.tensor(self.at.loss, dtype=torch.float64, device=self._reliable_device())
        for batch in self.train.epoch(state.at_epoch(), start=self.at.batch):
            loss += self._step(batch, state).to(loss)
            self.at.batch += 1
            self.callbacks.tell("on_step_end")
            due = self.train.resumable and self.at.batch % self.checkpoints.every == 0
            if due and self.at.batch < len(self.train):
                self._save(loss)
            self._obey(loss)
        self.at.loss = float(total(loss))

    def _step(self, batch: Batch, state: State) -> Tensor:
        """One step of the optimiser -> the batch's loss times its examples, of this process's part."""
        seed_for(self.fabric.device, seed_of(self.seed, state.at_epoch(), self.at.batch, self.fabric.global_rank))
        loss, weights, wanted = self.step(batch, state)
        if self.averaged is not None:
            self.averaged.update_parameters(self.plain)
        if loss.device.type == "cpu" and not loss.isfinite():
            raise self._not_finite(loss)
        self.at.taken += self._counted(batch, weights)
        self.at.wanted += self._counted(batch, wanted)
        self.progress.step(loss / len(batch.x), self.at.taken, phase_of(self.objective))
        return loss

    def _counted(self, batch: Batch, weights: Tensor) -> Tensor:
        """How often each member took an example of each group, (groups, M), by `weights` (M, B)."""
        task, by_pixel, label = self.method.task, self.method.unit == "pixel", batch.target
        if by_pixel:
            label = (label.argmax(1) if label.is_floating_point() else label).flatten()
        group = label if by_pixel else cast(Tensor, group_of(batch, task))
        if batch.weight is not None:
            weights = weights * batch.weight.repeat_interleave(len(group) // len(batch.x))
        if (counted := task.counted(label)) is not None:
            weights = weights * counted
            group = group.masked_fill(~counted, 0) if by_pixel or batch.group is None else group
        return metrics.taken(weights, group, groups=len(self.groups)).to(self.at.taken)

    def _factor(self, epoch: int) -> float:
        epoch = min(epoch, self.epochs)
        return self.recipe.factor(epoch) if self.schedule is None else float(self.schedule(epoch, self.epochs))

    def _finish(self, epoch: int) -> None:
        """Close the epoch: validate, warn, keep."""
        at, taken = self.at, total(self.at.taken.clone())
        mean = at.loss / len(self.train.examples)
        if not np.isfinite(mean):
            raise self._not_finite(mean)
        row = self._row(epoch, mean, taken)
        at.history.append(row)
        at.assignment_history.append(total(at.wanted.clone()).cpu())
        self.progress.line(self._line(row))
        self.last_taken = taken
        self._warn(row, taken)
        # Until the method has its final form, a lower error says nothing about the ensemble that is to be kept.
        watched = row.get(self.method.task.monitor, np.inf)
        if self.recipe.patience and epoch > self.settled and watched < at.best:
            at.best, at.best_epoch = watched, epoch
            self._keep_best()
        at.epoch, at.batch, at.loss, at.taken, at.wanted = epoch + 1, 0, 0.0, self._nothing(), self._nothing()
        self._save(torch.zeros((), dtype=torch.float64))

    def _row(self, epoch: int, loss: float, taken: Tensor) -> dict[str, Any]:
        """What log.csv says of an epoch."""
        row: dict[str, Any] = {"epoch": epoch, "phase": phase_of(self.objective), "loss": round(loss, 8)}
        row["learning_rate"] = self.rates[0] * self._factor(epoch)
        if self.validation is not None:
            found = evaluate(self.method, self.model, self.validation, also=self.extra.update)
            row |= {"oracle_error": found["oracle_error"], "top1_error": found["top1_error"]}
            row |= flat(self.extra.compute())
        share = taken.sum(0) / taken.sum()
        return row | {f"share_{m}": round(float(part), 6) for m, part in enumerate(share, start=1)}

    def _warn(self, row: dict[str, Any], taken: Tensor) -> None:
        early = row["epoch"] <= self.settled  # members have yet to learn what is not theirs
        errors = {} if early else {"oracle": row.get("oracle_error"), "top1": row.get("top1_error")}
        said = guardrails.check(taken, self.method, **errors)
        memory = memory_of(self.objective)
        if memory is not None and memory.fixed:
            said += guardrails.uncounted(memory.counts, self.groups)
        self._say(said)

    def _say(self, warnings: list[str]) -> None:
        for new in (text for text in warnings if text not in self.at.warnings):
            self.at.warnings.append(new)
            self.progress.line(new, logging.WARNING)

    def state_dict(self) -> dict[str, Any]:
        """All that a continuation needs."""
        at = {name: getattr(self.at, name) for name in Position.__dataclass_fields__}
        history = at.pop("assignment_history")
        at["flow"] = torch.stack(history) if history else []  # the key in files; one tensor rather than one per epoch
        return {
            "at": at,
            "last_taken": self.last_taken,
            "ensemble": self.plain.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; sums over processes go to the first, the others begin at nothing."""
        saved = {"wanted": self._nothing(), **state["at"]}
        self.at = Position(assignment_history=list(saved.pop("flow", ())), **saved)
        for name in ("taken", "wanted"):
            setattr(self.at, name, getattr(self.at, name).to(self.fabric.device) * (self.fabric.global_rank == 0))
        self.at.loss *= self.fabric.global_rank == 0
        self.last_taken = state["last_taken"].to(self.fabric.device)
        self.plain.load_state_dict(state["ensemble"])
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])

    def resume(self) -> None:
        """Go on from the last checkpoint of the run, or from the start where there is none yet."""
        with self.checkpoints.last(self.fabric.device) as state:
            if state is None:
                return
            self.load_state_dict(state)
            if state["format"] == 1:  # whose best epoch may lie in the warm-up, and was kept without its memory
                self.at.best, self.at.best_epoch = float("inf"), 0

    def _keep_best(self) -> None:
        state = {
            "ensemble": self.kept.state_dict(),
            "objective": self.objective.state_dict(),
            "taken": self.last_taken,
            "epoch": self.at.best_epoch,
        }
        self.checkpoints.keep_best(state, self.at.history)

    def restore_best(self) -> None:
        """With patience, weights, memory and shares are those of the best epoch."""
        if not self.recipe.patience or not self.at.best_epoch:
            return
        with self.checkpoints.best(self.fabric.device) as best:
            self.kept.load_state_dict(best["ensemble"])
            self.objective.load_state_dict(best["objective"])
            self.last_taken = best["taken"].to(self.fabric.device)

    @property
    def last_row(self) -> dict[str, Any]:
        """The log's row of the epoch that is kept: the last one, or the best one with patience."""
        return self.at.history[(self.at.best_epoch or len(self.at.history)) - 1]

    def _save(self, loss: Tensor) -> None:
        """Write a checkpoint of everything; a loss that is not finite is never kept."""
        if self.checkpoints.folder is None:
            return
        own = self.at.loss, self.at.taken, self.at.wanted
        self.at.loss = float(total(loss.clone()))
        self.at.taken, self.at.wanted = total(self.at.taken.clone()), total(self.at.wanted.clone())
        if not np.isfinite(self.at.loss):
            raise self._not_finite(self.at.loss)
        self.checkpoints.keep_last(self.state_dict(), self.at.history)
        self.at.loss, self.at.taken, self.at.wanted = own

    def _obey(self, loss: Tensor) -> None:
        """A signal to any process ends all of them at the same step, after saving what can be resumed."""
        number = self.signal
        if self.fabric.world_size > 1:
            number = int(highest(torch.tensor(number, device=self.fabric.device)))
        if number:
            if self.train.resumable:
                self._save(loss)
            elif self.checkpoints.folder is not None:
                self.progress.line(
                    f"Stopped in epoch {self.at.epoch}, of which nothing is saved: an epoch of a loader of your own "
                    "cannot begin in the middle. Resuming repeats it from its start."
                )
            raise Interrupted(number)

    def _line(self, row: dict[str, Any]) -> str:
        errors = ""
        if self.validation is not None:
            errors = f"  validation: oracle error {row['oracle_error']:.2f} %, top-1 error {row['top1_error']:.2f} %"
        shares = " ".join(f"{100 * row[f'share_{m}']:.0f}" for m in range(1, self.method.members + 1))
        line = f"epoch {row['epoch']}/{self.epochs}  loss {row['loss']:.4f}{errors}  shares {shares}  {row['phase']}"
        return line.rstrip()

    def _average(self, decay: float | None) -> AveragedModel | None:
        if decay is None:
            return None
        return AveragedModel(self.plain, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)

    def _nothing(self) -> Tensor:
        return torch.zeros(len(self.groups), self.method.members, device=self.fabric.device)

    def _reliable_device(self) -> torch.device:
        """Where sums can be kept in float64, which MPS has not."""
        return torch.device("cpu") if self.fabric.device.type == "mps" else self.fabric.device

    def _not_finite(self, loss: object) -> DivergedError:
        folder = self.checkpoints.folder
        kept = "" if folder is None else f" The last good checkpoint is kept in {folder / 'checkpoints'}."
        return DivergedError(
            f"Expected a finite loss, got {float(loss)} in epoch {self.at.epoch}, batch {self.at.batch + 1}. "  # type: ignore[arg-type]
            f"Lower learning_rate (now {self.recipe.learning_rate}), set clip, or use precision 32.{kept}"
        )


def own_optimizer(build: OptimizerBuilder, ensemble: nn.Module) -> Optimizer:
    """The optimiser that a callable makes; raises UsageError in one line unless it covers every parameter once."""
    named = list(ensemble.named_parameters())
    try:
        optimizer = build(named)
        covered = [id(weight) for group in optimizer.param_groups for weight in group["params"]]
    except Exception as problem:
        raise UsageError(
            "Expected a callable that is given all (name, parameter) and returns an optimiser, got "
            f"{type(problem).__name__}: {problem}."
        ) from problem
    if missing := [name for name, weight in named if weight.requires_grad and id(weight) not in covered]:
        raise UsageError(
            f"Expected an optimiser of every parameter, got one without {missing[0]} and {len(missing) - 1} more. "
            "Freeze what is not to learn with requires_grad_(False)."
        )
    return optimizer

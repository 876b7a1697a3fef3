import logging
from collections.abc import Callable, Iterator, Mapping
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
from torchmcl._utils.distributed import all_max, all_sum
from torchmcl._utils.durations import epochs_of
from torchmcl._utils.randomness import seed_device, seed_of
from torchmcl.data.loader import Batch, Loader
from torchmcl.ensemble import Ensemble
from torchmcl.errors import DivergedError, UsageError
from torchmcl.methods import Method
from torchmcl.networks.backbone import changing_state
from torchmcl.objectives.dataset_pass import run_dataset_passes
from torchmcl.objectives.objective import memory_of, phase_of
from torchmcl.structures.state import State
from torchmcl.training import branch, guardrails
from torchmcl.training.callbacks import Callbacks
from torchmcl.training.evaluate import AnyLoader, evaluate
from torchmcl.training.extra_metrics import ExtraMetrics, flatten_values
from torchmcl.training.machine import Machine
from torchmcl.training.member_parallel import MemberParallel
from torchmcl.training.progress import TrainingProgress
from torchmcl.training.recipe import Recipe
from torchmcl.training.resume import Checkpoints
from torchmcl.training.sample_others import OTHERS, SampleOthers, uniform_numbers
from torchmcl.training.signals import Interrupted, Stop
from torchmcl.training.step import Step, group_of

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from torchmcl.training.device import OneDevice

OptimizerBuilder = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]
Schedule = Callable[[int, int], float]


@dataclass
class Position:
    """The progress of a training run. Every field is stored in checkpoints.

    `epoch` is the current epoch, and `batch` is the number of its finished batches. `loss`, `taken` and `wanted` are
    sums over the current epoch. `taken` (groups, M) counts the examples that each member took, and `wanted` (groups, M)
    counts those that it would have taken with loss-based assignment. The counts differ if a memory assigns the
    examples. For each finished epoch, `history` has the row of log.csv, and `assignment_history` has `wanted`.
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
    """A training run. The result depends only on data, method, recipe and seed, even if the run is resumed.

    The random numbers of a step depend on (seed, epoch, batch, process). The order of the examples depends on (seed,
    epoch), and the learning rate depends on the epoch. Checkpoints therefore do not store the state of
    generators, samplers or schedulers. Each run creates its own objective from the method. `unshuffled` loads the
    training set in a fixed order for dataset passes.
    """

    def __init__(
        self,
        fabric: "Fabric | OneDevice",
        method: Method,
        ensemble: Ensemble,
        recipe: Recipe,
        *,
        train: AnyLoader,
        unshuffled: AnyLoader,
        validation: AnyLoader | None = None,
        groups: tuple[str, ...],
        seed: int,
        progress: TrainingProgress,
        checkpoints: Checkpoints | None = None,
        machine: Machine | None = None,
        optimizer: OptimizerBuilder | None = None,
        schedule: Schedule | None = None,
        callbacks: Callbacks | None = None,
        extra: Mapping[str, Metric] | None = None,
    ) -> None:
        self.fabric, self.method, self.recipe, self.progress = fabric, method, recipe, progress
        self.train, self.unshuffled, self.validation = train, unshuffled, validation
        self.groups, self.seed, self.epochs = groups, seed, recipe.length()
        self.checkpoints = checkpoints or Checkpoints()
        self.unwrapped = ensemble.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objective = method.new_objective().to(fabric.device).train()
        self.seed_epochs = 0 if recipe.branch is None else epochs_of(recipe.branch, self.epochs, "branch")
        self.schedule_end = self.seed_epochs or method.schedule_end(self.epochs)
        machine = machine or Machine()
        self.parallel: MemberParallel | None = None
        if machine.member_parallel:
            processes = {"rank": fabric.global_rank, "world": fabric.world_size}
            self.parallel = MemberParallel(method.members, device=fabric.device, **processes)
        self.averaged: AveragedModel | None = None
        if recipe.ema is not None:
            average = get_ema_multi_avg_fn(recipe.ema)
            self.averaged = AveragedModel(self.unwrapped, multi_avg_fn=average, use_buffers=True)
        module = cast(nn.Module, torch.compile(ensemble)) if machine.compile else ensemble
        built = recipe.build(recipe.groups(ensemble)) if optimizer is None else build_optimizer(optimizer, ensemble)
        self.rates, self.schedule = [group["lr"] for group in built.param_groups], schedule
        wrapped: tuple[Any, Any] = fabric.setup(module, built)
        self.ensemble, self.optimizer = wrapped
        common: dict[str, Any] = {"accumulate": recipe.accumulate, "clip": recipe.clip, "lean": machine.lean}
        common |= {"mean_weight": train.mean_weight, "parallel": self.parallel}
        others = SampleOthers(recipe.sample_others, recipe.sample_correction) if recipe.sample_others < 1 else None
        self.step = Step(fabric, ensemble, self.ensemble, self.objective, self.optimizer, others=others, **common)
        self.seed_step = self.step
        if self.seed_epochs:
            seed_objective, common["others"] = branch.seed_objective(method).to(fabric.device), branch.NO_OTHERS
            self.seed_step = Step(fabric, ensemble, self.ensemble, seed_objective, self.optimizer, **common)
        self.position = Position(taken=self._zeros(), wanted=self._zeros())
        self.last_taken = self._zeros()
        self.stop = Stop()
        self.callbacks = callbacks or Callbacks(())
        self.extra = ExtraMetrics(extra or {}, fabric.device)
        self.evaluated: dict[str, Any] = {}  # the metrics of the last evaluation of the validation split

    @property
    def monitor(self) -> str:
        """The name of the metric for early stopping."""
        return self.recipe.monitor or self.method.task.monitor

    def logged(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics for log.csv: the task's headline and, with patience, the metric for early stopping."""
        names = [*self.method.task.headline, *([self.monitor] if self.recipe.patience else [])]
        return {name: values[name] for name in names if name in values}

    @property
    def model(self) -> nn.Module:
        """The model to evaluate: the ensemble, or the moving average of its weights."""
        return self.ensemble if self.averaged is None else self.averaged.module

    @property
    def final_model(self) -> Ensemble:
        """The model to save: the same as `model`, but without Fabric's wrapper."""
        return self.unwrapped if self.averaged is None else cast(Ensemble, self.averaged.module)

    def run(self, until: int | None = None) -> None:
        """Train from the current position to the end of the schedule, or to the end of epoch `until`, if given.

        Signals stop the run only within `stop.listening()`.
        """
        with self.progress:
            self._report(guardrails.check_schedule(self.method, self.epochs))
            self._report(guardrails.check_targets(self.train.examples.target))
            self.callbacks.start(self)
            for epoch in range(self.position.epoch, (self.epochs if until is None else until) + 1):
                if self._out_of_patience(epoch - 1):  # a resumed run can already be out of patience
                    self.progress.line(f"Stopping: {self.monitor} has not improved for {self.recipe.patience} epochs.")
                    break
                self._epoch(State(epoch, self.epochs))
                self._end_epoch(epoch)
                self.callbacks.call("on_epoch_end", dict(self.position.history[-1]))
            self.callbacks.call("on_train_end")

    def _out_of_patience(self, epoch: int) -> bool:
        patience = self.recipe.patience
        return patience is not None and epoch - max(self.position.best_epoch, self.schedule_end) >= patience

    def _epoch(self, state: State) -> None:
        examples = ((batch.x, batch.target, batch.index) for batch in self.unshuffled.epoch())
        run_dataset_passes(self.objective, self.ensemble, examples, state)
        self.ensemble.train()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor(state.at_epoch())
        self.progress.begin(state.at_epoch(), self.epochs, self.position.batch, length_hint(self.train, 0) or None)
        device = torch.device("cpu") if self.fabric.device.type == "mps" else self.fabric.device  # MPS has no float64
        loss = torch.tensor(self.position.loss, dtype=torch.float64, device=device)
        for batch in self._batches(state):
            loss += self._step(batch, state).to(loss)
            self.position.batch += 1
            self.callbacks.call("on_step_end")
            due = self.train.resumable and self.position.batch % self.checkpoints.every == 0
            if due and self.position.batch < len(self.train):
                self._share()
                self._save(loss)
            self._stop_if_requested(loss)
        self.position.loss = float(all_sum(loss))

    def _batches(self, state: State) -> Iterator[Batch]:
        """Return the remaining batches of an epoch; members that are trained apart read only the examples they need."""
        epoch, start = state.at_epoch(), self.position.batch
        complete = self.unwrapped.exchange.shared_stem  # statistics of a trunk's features need the whole batch
        if self.parallel is None or complete or not isinstance(self.train, Loader) or not self.train.by_example:
            return self.train.epoch(epoch, start=start)

        def needed(number: int, batch: Batch) -> Tensor | None:
            return self._step_of(state).needed(batch, state, self._uniform(batch, number, state))

        return self.train.epoch(epoch, start=start, needed=needed)

    def _step_of(self, state: State) -> Step:
        return self.seed_step if state.at_epoch() <= self.seed_epochs else self.step

    def _step(self, batch: Batch, state: State) -> Tensor:
        """Run one optimiser step and return the loss times the number of examples in this process."""
        rank = self.fabric.global_rank
        seed_device(self.fabric.device, seed_of(self.seed, state.at_epoch(), self.position.batch, rank))
        uniform = self._uniform(batch, self.position.batch, state)
        loss, weights, wanted = self._step_of(state)(batch, state, uniform)
        if self.averaged is not None:
            self.averaged.update_parameters(self.unwrapped)
        if loss.device.type == "cpu" and not loss.isfinite():
            raise self._not_finite(loss)
        own = 1 if self.parallel is None else self.parallel.own
        self.position.taken += self._counted(batch, weights) * own
        self.position.wanted += self._counted(batch, wanted) * own
        self.progress.step(loss / len(batch.x), self.position.taken, self._phase(state.at_epoch()))
        return loss

    def _uniform(self, batch: Batch, number: int, state: State) -> Tensor | None:
        """Return the random numbers (M, B) by which step `number` samples, or None if all examples are seen."""
        if state.at_epoch() <= self.seed_epochs:
            return torch.ones(self.method.members, len(batch.x), device=self.fabric.device)
        if self.step.others is None:
            return None
        seed, fabric = seed_of(self.seed, state.at_epoch(), number, OTHERS), self.fabric
        rank, world = (fabric.global_rank, fabric.world_size) if self.parallel is None else (0, 1)
        members, device = self.method.members, fabric.device
        return uniform_numbers(seed, members, total=batch.total, rank=rank, world=world, device=device)

    def _share(self) -> None:
        """Send the members that this process has trained to the other processes, and receive theirs."""
        if self.parallel is None:
            return
        self.parallel.share(self.unwrapped, self.optimizer)
        if self.averaged is not None:
            self.parallel.share(self.final_model)

    def _counted(self, batch: Batch, weights: Tensor) -> Tensor:
        """Return the number of examples of each group that each member took, (groups, M), from the weights (M, B)."""
        task, by_pixel, label = self.method.task, self.method.unit == "pixel", batch.target
        if by_pixel:
            label = (label.argmax(1) if label.is_floating_point() else label).flatten()
        group = label if by_pixel else group_of(batch, task)
        if group is None:  # all examples are in one group
            group = torch.zeros(len(batch.x), dtype=torch.int64, device=label.device)
        if batch.weight is not None:
            weights = weights * batch.weight.repeat_interleave(len(group) // len(batch.x))
        if (counted := task.counted(label)) is not None:
            weights = weights * counted
            group = group.masked_fill(~counted, 0) if by_pixel or batch.group is None else group
        return metrics.taken(weights, group, groups=len(self.groups)).to(self.position.taken)

    def _factor(self, epoch: int) -> float:
        epoch = min(epoch, self.epochs)
        return self.recipe.factor(epoch) if self.schedule is None else float(self.schedule(epoch, self.epochs))

    def _end_epoch(self, epoch: int) -> None:
        """Evaluate the validation split, report warnings and save a checkpoint."""
        at, taken = self.position, all_sum(self.position.taken.clone())
        mean = at.loss / len(self.train.examples)
        if not np.isfinite(mean):
            raise self._not_finite(mean)
        self._share()
        if epoch <= self.seed_epochs:
            self._copy_seed(last=epoch == self.seed_epochs)
        row = self._row(epoch, mean, taken)
        at.history.append(row)
        at.assignment_history.append(all_sum(at.wanted.clone()).cpu())
        self.progress.line(self._line(row))
        self.last_taken = taken
        self._warn(row, taken)
        # The errors of two epochs are comparable only after the objective has reached its final phase.
        monitored = row.get(self.monitor, np.inf)
        if self.recipe.patience and epoch > self.schedule_end and monitored < at.best:
            at.best, at.best_epoch = monitored, epoch
            self._save_best()
        at.epoch, at.batch, at.loss, at.taken, at.wanted = epoch + 1, 0, 0.0, self._zeros(), self._zeros()
        self._save(torch.zeros((), dtype=torch.float64))

    def _copy_seed(self, *, last: bool) -> None:
        """Copy the seed network to all members and, after the last epoch of its phase, fix the owners of the classes.

        Copies after every epoch serve the evaluation. They change nothing else, because only the first is trained.
        """
        branch.copy_first_member(self.unwrapped, self.optimizer)
        branch.copy_first_member(self.final_model)
        if not last:
            return
        members, k = self.method.members, self.method.k
        if self.recipe.branch_groups == "confusion" and self.validation is not None:
            confusion = branch.confusion(self.model, self.validation, self.method.classes)
            owners = branch.confused_together(confusion, members, k)
        else:
            owners = branch.at_random(len(self.groups), members, k, seed=self.seed)
        branch.assign_owners(self.objective, owners)

    def _phase(self, epoch: int) -> str:
        return branch.PHASE if epoch <= self.seed_epochs else phase_of(self.objective)

    def _row(self, epoch: int, loss: float, taken: Tensor) -> dict[str, Any]:
        """Return the row of an epoch in log.csv."""
        row: dict[str, Any] = {"epoch": epoch, "phase": self._phase(epoch), "loss": round(loss, 8)}
        row["learning_rate"] = self.rates[0] * self._factor(epoch)
        if self.validation is not None:
            self.evaluated = evaluate(self.method, self.model, self.validation, on_batch=self.extra.update)
            row |= self.logged(self.evaluated)
            row |= flatten_values(self.extra.compute())
        share = taken.sum(0) / taken.sum()
        return row | {f"share_{m}": round(float(part), 6) for m, part in enumerate(share, start=1)}

    def _warn(self, row: dict[str, Any], taken: Tensor) -> None:
        if row["epoch"] <= self.seed_epochs:
            return
        early = row["epoch"] <= self.schedule_end  # members still learn which examples to leave
        warnings = guardrails.check_shares(taken, self.method)
        warnings += [] if early else guardrails.check_metrics(self.evaluated, self.method)
        memory = memory_of(self.objective)
        if memory is not None and memory.fixed:
            warnings += guardrails.check_counts(memory.counts, self.groups)
        self._report(warnings)

    def _report(self, warnings: list[str]) -> None:
        for text in warnings:
            if text not in self.position.warnings:
                self.position.warnings.append(text)
                self.progress.line(text, logging.WARNING)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is needed to resume."""
        at = {name: getattr(self.position, name) for name in Position.__dataclass_fields__}
        history = at.pop("assignment_history")
        at["flow"] = torch.stack(history) if history else []  # "flow" is the key in stored files
        return {
            "at": at,
            "last_taken": self.last_taken,
            "ensemble": changing_state(self.unwrapped),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": None if self.averaged is None else changing_state(self.averaged),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint. The first process receives the stored sums, and the others start from zero."""
        saved = {"wanted": self._zeros(), **state["at"]}
        self.position = Position(assignment_history=list(saved.pop("flow", ())), **saved)
        device, is_first = self.fabric.device, self.fabric.global_rank == 0
        self.position.loss *= is_first
        self.position.taken = self.position.taken.to(device) * is_first
        self.position.wanted = self.position.wanted.to(device) * is_first
        self.last_taken = state["last_taken"].to(device)
        _load(self.unwrapped, state["ensemble"])
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.averaged is not None:
            _load(self.averaged, state["averaged"])

    def resume(self) -> None:
        """Restore the last checkpoint of the run, if there is one."""
        with self.checkpoints.last(self.fabric.device) as state:
            if state is None:
                return
            self.load_state_dict(state)
            if state["format"] == 1:  # in this format, the best epoch can be in the warm-up and lacks its memory
                self.position.best, self.position.best_epoch = float("inf"), 0

    def _save_best(self) -> None:
        state: dict[str, Any] = {"ensemble": changing_state(self.final_model), "objective": self.objective.state_dict()}
        state |= {"taken": self.last_taken, "epoch": self.position.best_epoch}
        self.checkpoints.save_best(state, self.position.history)

    def restore_best(self) -> None:
        """If `patience` is set, restore the weights, memory and shares of the best epoch."""
        if not self.recipe.patience or not self.position.best_epoch:
            return
        with self.checkpoints.best(self.fabric.device) as best:
            _load(self.final_model, best["ensemble"])
            self.objective.load_state_dict(best["objective"])
            self.last_taken = best["taken"].to(self.fabric.device)

    @property
    def last_row(self) -> dict[str, Any]:
        """The row in log.csv of the saved epoch: the last epoch, or the best epoch if `patience` is set."""
        return self.position.history[(self.position.best_epoch or len(self.position.history)) - 1]

    def _save(self, loss: Tensor) -> None:
        """Write a checkpoint, or raise DivergedError if the loss is not finite."""
        if self.checkpoints.folder is None:
            return
        at = self.position
        local = at.loss, at.taken, at.wanted
        at.loss = float(all_sum(loss.clone()))
        at.taken, at.wanted = all_sum(at.taken.clone()), all_sum(at.wanted.clone())
        if not np.isfinite(at.loss):
            raise self._not_finite(at.loss)
        self.checkpoints.save_last(self.state_dict(), at.history)
        at.loss, at.taken, at.wanted = local

    def _stop_if_requested(self, loss: Tensor) -> None:
        """If any process received a signal, save a checkpoint and stop all processes at the same step."""
        number = self.stop.number
        if self.fabric.world_size > 1:
            number = int(all_max(torch.tensor(number, device=self.fabric.device)))
        if number:
            if self.train.resumable:
                self._share()
                self._save(loss)
            elif self.checkpoints.folder is not None:
                self.progress.line(
                    f"Stopped in epoch {self.position.epoch}, which is not saved, because a custom data loader cannot "
                    "resume within an epoch. A resumed run repeats the epoch."
                )
            raise Interrupted(number)

    def _line(self, row: dict[str, Any]) -> str:
        errors = ""
        if self.validation is not None:
            errors = f"  validation: {self.method.task.summary(row)}"
        shares = " ".join(f"{100 * row[f'share_{m}']:.0f}" for m in range(1, self.method.members + 1))
        line = f"epoch {row['epoch']}/{self.epochs}  loss {row['loss']:.4f}{errors}  shares {shares}  {row['phase']}"
        return line.rstrip()

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self.groups), self.method.members, device=self.fabric.device)

    def _not_finite(self, loss: Tensor | float) -> DivergedError:
        folder, at = self.checkpoints.folder, self.position
        saved = "" if folder is None else f" The last valid checkpoint is in {folder / 'checkpoints'}."
        return DivergedError(
            f"The loss is {float(loss)} in epoch {at.epoch}, batch {at.batch + 1}. "
            f"Lower learning_rate (now {self.recipe.learning_rate}), set clip, or use precision 32.{saved}"
        )


def _load(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the result of `changing_state`."""
    own, changing = module.state_dict(), changing_state(module)
    module.load_state_dict({name: own[name] for name in own if name not in changing} | dict(state))


def build_optimizer(build: OptimizerBuilder, ensemble: nn.Module) -> Optimizer:
    """Return the optimiser that a user's callable builds.

    Raises:
        UsageError: If the callable fails, or if the optimiser lacks a parameter that requires a gradient.
    """
    named = list(ensemble.named_parameters())
    try:
        optimizer = build(named)
        covered = [id(weight) for group in optimizer.param_groups for weight in group["params"]]
    except Exception as problem:
        raise UsageError(
            f"The optimizer callable failed with {type(problem).__name__}: {problem}. "
            "The callable must map a list of (name, parameter) pairs to an optimiser."
        ) from problem
    if missing := [name for name, weight in named if weight.requires_grad and id(weight) not in covered]:
        raise UsageError(
            f"The optimiser does not contain {len(missing)} of the parameters, such as {missing[0]}. "
            "Add the parameters, or exclude them from training with requires_grad_(False)."
        )
    return optimizer

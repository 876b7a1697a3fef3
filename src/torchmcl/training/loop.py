import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics import Metric

from torchmcl import atomic, metrics
from torchmcl.data.loader import Batch, Loader
from torchmcl.ensemble import Ensemble
from torchmcl.errors import DivergedError, UsageError
from torchmcl.methods import Method
from torchmcl.objective import memory_of, phase_of
from torchmcl.opinions import Opinions
from torchmcl.processes import average, highest, total
from torchmcl.seeds import seed_of
from torchmcl.state import State
from torchmcl.surveys import survey
from torchmcl.training import checkpoint, guardrails
from torchmcl.training.callbacks import Callbacks
from torchmcl.training.config import difference
from torchmcl.training.evaluate import evaluate
from torchmcl.training.extra import ExtraMetrics, flat
from torchmcl.training.folder import must_be_there
from torchmcl.training.lean import lean_backward
from torchmcl.training.progress import Screen
from torchmcl.training.recipe import Recipe
from torchmcl.training.signals import Interrupted, Stop

if TYPE_CHECKING:
    from lightning.fabric import Fabric

OptimizerBuilder = Callable[[list[tuple[str, nn.Parameter]]], Optimizer]
Schedule = Callable[[int, int], float]
FORMAT = 2  # of a checkpoint
READABLE = (1, 2)


@dataclass
class Position:
    """How far training has come: all of it is in a checkpoint, none of it is on the clock.

    `epoch` is under way and `batch` of its batches are done; `loss`, `taken` and `wanted` (groups, M) are sums over the
    epoch so far; of every epoch that is over, `history` has a row and `flow` what was wanted. Members want what they
    would take by loss alone, which differs from what they take where a memory decides. `last_taken` is what they took
    in the last whole epoch, or in the best one once that is restored.
    """

    epoch: int = 1
    batch: int = 0
    loss: float = 0.0
    taken: Tensor = field(default_factory=lambda: torch.zeros(0))
    wanted: Tensor = field(default_factory=lambda: torch.zeros(0))
    flow: list[Tensor] = field(default_factory=list)
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
        fabric: "Fabric",
        method: Method,
        ensemble: Ensemble,
        recipe: Recipe,
        *,
        train: Loader,
        everything: Loader,
        validation: Loader | None,
        groups: tuple[str, ...],
        seed: int,
        screen: Screen,
        folder: Path | None = None,
        checkpoint_steps: int = 1000,
        compile: bool = False,
        lean: bool = False,
        optimizer: OptimizerBuilder | None = None,
        schedule: Schedule | None = None,
        callbacks: Callbacks | None = None,
        extra: Mapping[str, Metric] | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.fabric, self.method, self.recipe, self.screen = fabric, method, recipe, screen
        self.train, self.everything, self.validation = train, everything, validation
        self.groups, self.seed, self.epochs = groups, seed, recipe.length()
        self.folder, self.checkpoint_steps = folder, checkpoint_steps
        self.lean, self.per_pixel = lean, method.unit == "pixel"
        self.identity = json.dumps(identity or {}, default=str)
        self.plain = ensemble.to(fabric.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.objective = method.new_objective().to(fabric.device).train()
        self.settled = method.settles_after(self.epochs)
        self.averaged = self._average(recipe.ema)
        module = cast(nn.Module, torch.compile(ensemble)) if compile else ensemble
        built = recipe.build(ensemble.parameters()) if optimizer is None else _own(optimizer, ensemble)
        self.rates, self.schedule = [group["lr"] for group in built.param_groups], schedule
        self.ensemble, self.optimizer = fabric.setup(module, built)
        self.at = Position(taken=self._nothing(), wanted=self._nothing())
        self.last_taken = self._nothing()
        self.best: dict[str, Any] | None = None  # where no folder keeps it
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

    def run(self) -> None:
        """Train to the end, from wherever the position is."""
        with self.stop.listening(), self.screen:
            self._say(guardrails.unsettled(self.method, self.epochs))
            self.callbacks.start(self)
            for epoch in range(self.at.epoch, self.epochs + 1):
                if self._patience_ends(epoch - 1):  # here, since a resumed training may have come so far
                    self.screen.line(f"No better top-1 error for {self.recipe.patience} epochs: stopping.")
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
        survey(self.objective, self.ensemble, examples, state)
        self.ensemble.train()
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * self._factor(state.at_epoch())
        self.screen.begin(state.at_epoch(), self.epochs, self.at.batch, len(self.train))
        loss = torch.tensor(self.at.loss, dtype=torch.float64, device=self._reliable_device())
        for batch in self.train.epoch(state.at_epoch(), start=self.at.batch):
            loss += self._step(batch, state).to(loss)
            self.at.batch += 1
            self.callbacks.tell("on_step_end")
            if self.at.batch % self.checkpoint_steps == 0 and self.at.batch < len(self.train):
                self._save(loss)
            self._obey(loss)
        self.at.loss = float(total(loss))

    def _step(self, batch: Batch, state: State) -> Tensor:
        """One step of the optimiser -> the batch's loss times its examples, of this process's part."""
        epoch = state.at_epoch()
        torch.manual_seed(seed_of(self.seed, epoch, self.at.batch, self.fabric.global_rank))
        self.optimizer.zero_grad()
        loss = torch.zeros((), device=batch.x.device)  # times examples
        for part, last in _parts(batch, self.recipe.accumulate):
            with self._synchronised(last):
                loss = loss + self._accumulate(part, epoch) * len(part.x)
        if self.recipe.clip:
            self.fabric.clip_gradients(self.ensemble, self.optimizer, max_norm=self.recipe.clip)
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.update_parameters(self.plain)
        if loss.device.type == "cpu" and not loss.isfinite():
            raise self._not_finite(loss)
        self.screen.step(loss / len(batch.x), self.at.taken, phase_of(self.objective))
        return loss

    def _accumulate(self, batch: Batch, epoch: int) -> Tensor:
        """Forward and backward of a batch, or of a part of it -> its loss; what members take is counted."""
        group = self.method.task.group(batch.target) if batch.group is None else batch.group
        loss, weights, wanted = self._gradients(batch, State(epoch, self.epochs, group, batch.index))
        counted = batch.target.flatten() if self.per_pixel else cast(Tensor, group)
        valid = self.method.task.valid(counted)
        for sums, chosen in ((self.at.taken, weights), (self.at.wanted, wanted)):
            if valid is not None:
                chosen, counted = chosen * valid, counted.masked_fill(~valid, 0)
            sums += metrics.taken(chosen, counted, groups=len(self.groups)).to(sums)
        return loss

    def _synchronised(self, last: bool) -> AbstractContextManager:
        """Processes exchange their gradients once per step, after its last part."""
        if last or self.fabric.world_size == 1:
            return nullcontext()
        return self.fabric.no_backward_sync(cast(Any, self.ensemble))

    def _factor(self, epoch: int) -> float:
        return self.recipe.factor(epoch) if self.schedule is None else float(self.schedule(epoch, self.epochs))

    def _gradients(self, batch: Batch, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Forward and backward -> loss, weights (M, B) of who took what, and of who would have by loss."""

        def backward(loss: Tensor) -> None:
            # Gradients are averaged over processes; a part's weight is its number of examples, which may differ.
            self.fabric.backward(loss * (len(batch.x) * self.fabric.world_size / batch.total))

        if self.lean:
            loss, weights, logits = lean_backward(
                self.plain,
                self.objective,
                batch.x,
                batch.target,
                state,
                backward=backward,
                autocast=self.fabric.autocast,
            )
            average([p.grad for p in self.plain.parameters() if p.grad is not None])
            return loss, weights, self._wanted(Opinions(logits), batch.target, state, weights)
        opinions = self.ensemble(batch.x)
        outcome = self.objective(opinions, batch.target, state)
        backward(outcome.loss)
        wanted = self._wanted(opinions, batch.target, state, outcome.weights)
        return outcome.loss.detach(), outcome.weights, wanted

    def _wanted(self, opinions: Opinions, target: Tensor, state: State, weights: Tensor) -> Tensor:
        """Who would take what by loss, (M, B), whatever a memory decides.

        For masks it is not computed, since it would cost as much as the loss.
        """
        memory, by_loss = memory_of(self.objective), getattr(self.objective, "chosen_by_loss", None)
        if memory is None or not memory.fixed or by_loss is None or target.ndim > 1:
            return weights
        chosen: Tensor = by_loss(opinions, target, state)
        return chosen

    def _finish(self, epoch: int) -> None:
        """Close the epoch: validate, warn, keep."""
        at, taken = self.at, total(self.at.taken.clone())
        mean = at.loss / len(self.train.examples)
        if not np.isfinite(mean):
            raise self._not_finite(mean)
        row = self._row(epoch, mean, taken)
        at.history.append(row)
        at.flow.append(total(at.wanted.clone()).cpu())
        self.screen.line(self._line(row))
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
        said = guardrails.look(taken, self.method, **errors)
        memory = memory_of(self.objective)
        if memory is not None and memory.fixed:
            said += guardrails.uncounted(memory.counts, self.groups)
        self._say(said)

    def _say(self, warnings: list[str]) -> None:
        for new in (text for text in warnings if text not in self.at.warnings):
            self.at.warnings.append(new)
            self.screen.line(new, logging.WARNING)

    def state_dict(self) -> dict[str, Any]:
        """All that a continuation needs."""
        at = {name: getattr(self.at, name) for name in Position.__dataclass_fields__}
        at["flow"] = torch.stack(self.at.flow) if self.at.flow else []  # one tensor, not one an epoch
        return {
            "format": FORMAT,
            "choices": self.identity,
            "at": at,
            "last_taken": self.last_taken,
            "ensemble": self.plain.state_dict(),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; sums over processes go to the first, the others begin at nothing."""
        self.at = Position(**{"wanted": self._nothing(), **state["at"]})
        self.at.flow = list(self.at.flow)
        for name in ("taken", "wanted"):
            setattr(self.at, name, getattr(self.at, name).to(self.fabric.device) * (self.fabric.global_rank == 0))
        self.at.loss *= self.fabric.global_rank == 0
        self.last_taken = state["last_taken"].to(self.fabric.device)
        self.plain.load_state_dict(state["ensemble"])
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])

    def continue_from(self, folder: Path) -> None:
        """Go on from the last checkpoint of a run, or from the start where there is none yet."""
        path = folder / "checkpoints" / "last.pt"
        if not path.is_file():
            return
        state = checkpoint.read(path, self.fabric.device)
        try:
            if state["format"] not in READABLE:
                raise UsageError(f"format {state['format']}, this torchmcl reads {' and '.join(map(str, READABLE))}")
            self._same_identity(state)
            self.load_state_dict(state)
            if state["format"] == 1:  # whose best epoch may lie in the warm-up, and was kept without its memory
                self.at.best, self.at.best_epoch = float("inf"), 0
        except Exception as problem:  # a damaged state can raise anything
            raise checkpoint.refused(path, problem) from problem

    def _same_identity(self, state: dict[str, Any]) -> None:
        now, begun = json.loads(self.identity), json.loads(state.get("choices", self.identity))
        if state["format"] == 1:  # it left defaults open, and where networks are cut was among its choices
            said = {name: value for name, value in begun.items() if value not in (None, "default") and name != "cut"}
            begun = now | {name: value for name, value in said.items() if name in now}
        if (name := difference(now, begun)) is not None:
            raise UsageError(f"it was begun with {name} {begun.get(name)}, not {now.get(name)}")

    def _keep_best(self) -> None:
        state = {
            "ensemble": self.kept.state_dict(),
            "objective": self.objective.state_dict(),
            "taken": self.last_taken,
            "epoch": self.at.best_epoch,
        }
        if self.folder is not None:
            self._keep("best.pt", state)
        else:
            self.best = _copied(state)

    def restore_best(self) -> None:
        """With patience, weights, memory and shares are those of the best epoch."""
        if not self.recipe.patience or not self.at.best_epoch:
            return
        path = None if self.folder is None else self.folder / "checkpoints" / "best.pt"
        best = self.best if path is None else checkpoint.read(path, self.fabric.device)
        try:
            assert best is not None
            self.kept.load_state_dict(best["ensemble"])
            self.objective.load_state_dict(best["objective"])
            self.last_taken = best["taken"].to(self.fabric.device)
        except (RuntimeError, KeyError, TypeError, AttributeError, AssertionError) as problem:
            raise checkpoint.refused(path or Path("best.pt"), problem) from problem

    @property
    def last_row(self) -> dict[str, Any]:
        """The log's row of the epoch that is kept: the last one, or the best one with patience."""
        return self.at.history[(self.at.best_epoch or len(self.at.history)) - 1]

    def _save(self, loss: Tensor) -> None:
        """Write a checkpoint of everything; a loss that is not finite is never kept."""
        if self.folder is None:
            return
        own = self.at.loss, self.at.taken, self.at.wanted
        self.at.loss = float(total(loss.clone()))
        self.at.taken, self.at.wanted = total(self.at.taken.clone()), total(self.at.wanted.clone())
        if not np.isfinite(self.at.loss):
            raise self._not_finite(self.at.loss)
        self._keep("last.pt", self.state_dict())
        self.at.loss, self.at.taken, self.at.wanted = own

    def _keep(self, name: str, state: dict[str, Any]) -> None:
        if self.folder is not None and self.fabric.is_global_zero:
            must_be_there(self.folder)
            with atomic.full_disk_named(self.folder / "checkpoints"):
                (self.folder / "checkpoints").mkdir(exist_ok=True)  # not its parents, which may have gone
            if self.at.history:  # before the checkpoint: what is killed in between writes this row again
                atomic.write(self.folder / "log.csv", table(self.at.history))
            checkpoint.write(self.folder / "checkpoints" / name, state)

    def _obey(self, loss: Tensor) -> None:
        """A signal to any process ends all of them at the same step, after saving."""
        number = self.signal
        if self.fabric.world_size > 1:
            number = int(highest(torch.tensor(number, device=self.fabric.device)))
        if number:
            self._save(loss)
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
        kept = "" if self.folder is None else f" The last good checkpoint is kept in {self.folder / 'checkpoints'}."
        return DivergedError(
            f"Expected a finite loss, got {float(loss)} in epoch {self.at.epoch}, batch {self.at.batch + 1}. "  # type: ignore[arg-type]
            f"Lower learning_rate (now {self.recipe.learning_rate}), set clip, or use precision 32.{kept}"
        )


def _own(build: OptimizerBuilder, ensemble: nn.Module) -> Optimizer:
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


def _parts(batch: Batch, count: int) -> Iterator[tuple[Batch, bool]]:
    """A batch in up to `count` parts of at least two examples each, and whether a part is the last one."""
    count = max(min(count, len(batch.x) // 2), 1)
    if count == 1:
        yield batch, True
        return
    for number, at in enumerate(torch.arange(len(batch.x), device=batch.x.device).tensor_split(count), start=1):
        group = None if batch.group is None else batch.group[at]
        yield Batch(batch.x[at], batch.target[at], batch.index[at], group, batch.total), number == count


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as CSV, the columns those of the fullest, and what only others have."""
    columns = list(dict.fromkeys(name for row in sorted(rows, key=len, reverse=True) for name in row))
    lines = [",".join(columns), *(",".join(str(row.get(column, "")) for column in columns) for row in rows)]
    return "\n".join(lines) + "\n"


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """A state that later steps do not change."""
    return {
        name: {key: part.clone() if isinstance(part, Tensor) else part for key, part in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in state.items()
    }

"""Parts of an objective that must see the whole training set at certain moments, and keep what they need of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from torchmcl._utils.distributed import all_max, is_distributed
from torchmcl._utils.durations import Duration
from torchmcl.assignment import Assignment
from torchmcl.errors import UsageError
from torchmcl.structures.output import EnsembleOutput, to_float32
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, Task
from torchmcl.tasks import with_loss

Item = TypeVar("Item", bound=Tensor | tuple)


def outputs(
    ensemble: Callable[[Tensor], EnsembleOutput], batches: Iterable[Item]
) -> Iterator[tuple[Item, EnsembleOutput]]:
    """Run an ensemble over batches in evaluation mode, one at a time -> each batch with the members' outputs.

    A batch is an input (B, …) as the members read it, or a tuple that begins with one, such as `data.loader.Batch`.
    Gradients are disabled in the forward pass only. The mode of every module is restored when the iterator ends, is
    closed or raises.

    >>> ensemble = nn.Linear(4, 2)
    >>> [(x.shape, logits.requires_grad, ensemble.training) for x, logits in outputs(ensemble, torch.ones(1, 3, 4))]
    [(torch.Size([3, 4]), False, False)]
    >>> ensemble.training
    True
    """
    with evaluating(ensemble):
        for batch in batches:
            with torch.no_grad():
                said = ensemble(batch if isinstance(batch, Tensor) else batch[0])
            yield batch, said


@contextmanager
def evaluating(ensemble: object) -> Iterator[None]:
    """Put a module into evaluation mode, and each of its parts back into its own mode afterwards."""
    parts = list(ensemble.modules()) if isinstance(ensemble, nn.Module) else []
    before = [part.training for part in parts]
    if isinstance(ensemble, nn.Module):
        ensemble.eval()
    try:
        yield
    finally:
        for part, mode in zip(parts, before, strict=True):
            if part.training != mode:  # parents come first, so that what they do to their parts is put right
                part.train(mode)


class ExampleBuffer(nn.Module):
    """Remembered rows by number of example: `rows` (N, …), grown as they come; `stamp` is the epoch of the survey.

    >>> table = ExampleBuffer()
    >>> table.write(torch.tensor([2, 0]), torch.tensor([[2.0, 2.0], [1.0, 1.0]]))
    >>> table.read(torch.tensor([0]))
    tensor([[1., 1.]])
    """

    rows: Tensor
    known: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stamp = 0
        self.register_buffer("rows", torch.empty(0))
        self.register_buffer("known", torch.empty(0, dtype=torch.bool))

    def write(self, index: Tensor | None, rows: Tensor) -> None:
        """Keep `rows` (B, …) for the examples numbered `index` (B,)."""
        index = self._inspect(index)
        self._grow(int(index.max()) + 1, rows.shape[1:], rows.dtype)
        self.rows[index] = rows.detach()
        self.known[index] = True

    def read(self, index: Tensor | None) -> Tensor:
        """(B,) -> (B, …)."""
        index = self._inspect(index)
        if index.device.type == "cpu" and not (int(index.max()) < len(self.known) and bool(self.known[index].all())):
            raise UsageError(
                "Expected every training example to have been surveyed, got one that was not. "
                "Call torchmcl.survey(objective, ensemble, batches, state) before each epoch."
            )
        return self.rows[index]

    def gather(self) -> None:
        """Let every process have what any of them wrote."""
        if not is_distributed():
            return
        size = torch.tensor([len(self.rows)], device=self.rows.device)
        self._grow(int(all_max(size)), self.rows.shape[1:], self.rows.dtype)
        lowest = torch.finfo(self.rows.dtype).min
        unknown = ~self.known.reshape(-1, *[1] * (self.rows.ndim - 1))
        self.rows = all_max(self.rows.masked_fill(unknown, lowest))
        self.known = all_max(self.known.to(torch.uint8)).to(torch.bool)

    def _grow(self, size: int, shape: torch.Size, dtype: torch.dtype) -> None:
        if size <= len(self.rows):
            return
        rows, known = self.rows.new_zeros(size, *shape, dtype=dtype), self.known.new_zeros(size)
        if len(self.rows):
            rows[: len(self.rows)], known[: len(self.known)] = self.rows, self.known
        self.rows, self.known = rows, known

    @staticmethod
    def _inspect(index: Tensor | None) -> Tensor:
        if index is None:
            raise UsageError("Expected state.index (B,), the number of each example in the training set, got none.")
        return index

    def get_extra_state(self) -> Tensor:
        """The epoch of the survey."""
        return torch.tensor(self.stamp)

    def set_extra_state(self, state: Any) -> None:
        """Load it back."""
        self.stamp = int(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("rows", "known"):  # a checkpoint decides how many examples there are
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(saved, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)


class DatasetPass(nn.Module, ABC):
    """A part of an objective that is shown the whole training set whenever it is `due`."""

    def __init__(self, table: ExampleBuffer) -> None:
        super().__init__()
        self.table = table

    @abstractmethod
    def due(self, state: State) -> bool:
        """Whether a survey is needed before training this epoch."""

    @abstractmethod
    def note(self, logits: Tensor, target: Tensor, state: State) -> None:
        """Keep what is needed of a batch: logits (M, B, C, …), target (B, …), state.index (B,)."""


class FixedAssignment(DatasetPass):
    """The assignment of every training example, surveyed at the start of each round of epochs and then held fixed.

    The block coordinate descent of MCL, Guzman-Rivera et al. 2012. Where the state does not record, as in validation,
    examples have no number in the training set and are assigned on the spot.
    """

    loss_independent = True

    def __init__(self, cost: Cost | Task, assign: Assignment, *, every: int) -> None:
        super().__init__(ExampleBuffer())
        self.task, self.cost = with_loss(cost)
        self.assign = assign
        self.every = every

    def due(self, state: State) -> bool:  # noqa: D102
        return self.table.stamp < 1 + (state.at_epoch() - 1) // self.every * self.every

    def note(self, logits: Tensor, target: Tensor, state: State) -> None:  # noqa: D102
        target, state = self.task.prepare(logits, target, state)
        weights = self.assign(self.cost(logits, target, state), state)
        self.table.write(state.index, weights.T)

    def forward(self, regret: Tensor, state: State) -> Tensor:
        """(M, B) -> (M, B)."""
        if not state.recording(self):
            return self.assign(regret, state)
        weights = self.table.read(state.index)
        if weights.shape[1] != len(regret):
            raise UsageError(f"Expected {weights.shape[1]} members as surveyed, got {len(regret)}.")
        return weights.T.to(regret.dtype)


class ToTeacher(DatasetPass):
    """CE(softmax(t_m / T), softmax(z_m / T)): MCL-KD, Mun et al. 2018.

    t_m are the member's own logits before it specialised. The teachers are frozen, so their logits of every training
    example are surveyed once, after the epochs of the duration `after`, and kept.
    """

    def __init__(self, *, temperature: float, after: Duration) -> None:
        super().__init__(ExampleBuffer())
        self.temperature = temperature
        self.after = after

    def due(self, state: State) -> bool:  # noqa: D102
        return state.at_epoch() > state.epochs_in(self.after, "pretrain") and self.table.stamp == 0

    def note(self, logits: Tensor, target: Tensor, state: State) -> None:  # noqa: D102
        self.table.write(state.index, to_float32(logits).transpose(0, 1))

    def forward(self, logits: Tensor, target: Tensor, state: State) -> Tensor:
        """Logits (M, B, C, …) -> cost (M, B)."""
        if not state.recording(self):
            raise UsageError(
                "Expected a batch of the training set, since MCL-KD has teachers only for those, got one outside "
                "training. Measure errors with the ensemble's output instead of its loss."
            )
        teacher = self.table.read(state.index).transpose(0, 1)
        student = (to_float32(logits) / self.temperature).log_softmax(2)
        return state.by_example(-((teacher / self.temperature).softmax(2) * student).sum(2))


@torch.no_grad()
def run_dataset_passes(
    objective: nn.Module,
    ensemble: Callable[[Tensor], EnsembleOutput],
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    state: State,
) -> bool:
    """Show the training set, in `batches` of (x, target, index), to the parts of an objective that are due to see it.

    To be called before every epoch; it returns at once, False, where nobody asks. The ensemble is in evaluation mode
    meanwhile. Over several processes, each shows its part of the set.
    """
    due = [part for part in objective.modules() if isinstance(part, DatasetPass) and part.due(state)]
    if not due:
        return False
    for (_, target, index), said in outputs(ensemble, batches):
        for part in due:
            part.note(said.logits, target, replace(state, index=index))
    for part in due:
        part.table.gather()
        part.table.stamp = state.at_epoch()
    return True

"""Parts of an objective that process the whole training set before certain epochs and store results per example."""

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
Output = TypeVar("Output")


def outputs(ensemble: Callable[[Tensor], Output], batches: Iterable[Item]) -> Iterator[tuple[Item, Output]]:
    """Run an ensemble over batches in evaluation mode and yield each batch with the members' outputs.

    A batch is an input (B, …) or a tuple that starts with one, such as `data.loader.Batch`. Gradients are disabled in
    the forward pass only. The mode of every module is restored when the iterator ends, is closed or raises.

    >>> ensemble = nn.Linear(4, 2)
    >>> [(x.shape, logits.requires_grad, ensemble.training) for x, logits in outputs(ensemble, torch.ones(1, 3, 4))]
    [(torch.Size([3, 4]), False, False)]
    >>> ensemble.training
    True
    """
    with evaluating(ensemble):
        for batch in batches:
            with torch.no_grad():
                output = ensemble(batch if isinstance(batch, Tensor) else batch[0])
            yield batch, output


@contextmanager
def evaluating(ensemble: object) -> Iterator[None]:
    """Put a module into evaluation mode, and restore the mode of each submodule at the end."""
    parts = list(ensemble.modules()) if isinstance(ensemble, nn.Module) else []
    before = [part.training for part in parts]
    if isinstance(ensemble, nn.Module):
        ensemble.eval()
    try:
        yield
    finally:
        for part, mode in zip(parts, before, strict=True):
            if part.training != mode:  # parents come first, because train() also changes their submodules
                part.train(mode)


class ExampleBuffer(nn.Module):
    """A growing buffer `rows` (N, …) with one row per training example; `stamp` is the epoch of the last pass.

    >>> buffer = ExampleBuffer()
    >>> buffer.write(torch.tensor([2, 0]), torch.tensor([[2.0, 2.0], [1.0, 1.0]]))
    >>> buffer.read(torch.tensor([0]))
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
        """Store `rows` (B, …) for the examples `index` (B,)."""
        index = self._inspect(index)
        self._grow(int(index.max()) + 1, rows.shape[1:], rows.dtype)
        self.rows[index] = rows.detach()
        self.known[index] = True

    def read(self, index: Tensor | None) -> Tensor:
        """Return the rows (B, …) of the examples `index` (B,); raise UsageError if a row is missing."""
        index = self._inspect(index)
        if index.device.type == "cpu" and not (int(index.max()) < len(self.known) and bool(self.known[index].all())):
            raise UsageError(
                "A training example is missing from the dataset pass. "
                "Call torchmcl.run_dataset_passes(objective, ensemble, batches, state) before each epoch."
            )
        return self.rows[index]

    def clear(self) -> None:
        """Forget all rows."""
        self.known = torch.zeros_like(self.known)

    def gather(self) -> None:
        """Merge the rows of all processes."""
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
            raise UsageError("This method needs the index of each training example. Pass state.index (B,).")
        return index

    def get_extra_state(self) -> Tensor:
        """Return the epoch of the last pass."""
        return torch.tensor(self.stamp)

    def set_extra_state(self, state: Any) -> None:
        """Restore the epoch of the last pass."""
        self.stamp = int(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("rows", "known"):  # resized, because their size depends on the checkpoint
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(saved, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)


class DatasetPass(nn.Module, ABC):
    """Base class for parts of an objective that process the whole training set when a pass is `due`."""

    def __init__(self, table: ExampleBuffer) -> None:
        super().__init__()
        self.table = table

    @abstractmethod
    def due(self, state: State) -> bool:
        """Return whether a pass is needed before this epoch."""

    @abstractmethod
    def record(self, logits: Tensor, target: Tensor, state: State) -> None:
        """Store the results of a batch: logits (M, B, C, …), target (B, …), state.index (B,)."""

    def finish(self, state: State) -> None:
        """Process the stored results of the whole training set; by default, keep them."""


class FixedAssignment(DatasetPass):
    """An assignment of the training set that is recomputed once per round of `every` epochs and fixed in between.

    Implements the block coordinate descent of MCL, Guzman-Rivera et al. 2012. If the state does not allow
    recording, for example in validation, the batch is assigned by its regret, not by the stored assignment.

    Args:
        cost: The task or cost that determines the regret.
        assign: The assignment to apply to the regret.
        every: The number of epochs per round.
    """

    loss_independent = True

    def __init__(self, cost: Cost | Task, assign: Assignment, *, every: int) -> None:
        super().__init__(ExampleBuffer())
        self.task, self.cost = with_loss(cost)
        self.assign = assign
        self.every = every

    def due(self, state: State) -> bool:  # noqa: D102
        return self.table.stamp < 1 + (state.at_epoch() - 1) // self.every * self.every

    def record(self, logits: Tensor, target: Tensor, state: State) -> None:  # noqa: D102
        target, state = self.task.prepare(logits, target, state)
        self.table.write(state.index, self.cost(logits, target, state).transpose(0, 1))

    def finish(self, state: State) -> None:
        """Replace the stored costs by the assignment of the whole training set."""
        known = self.table.known
        assigned = self.assign(self.table.rows[known].transpose(0, 1), replace(state, record=False))
        self.table.rows[known] = assigned.transpose(0, 1)

    def forward(self, regret: Tensor, state: State) -> Tensor:
        """Return the stored weights (M, B, …) of the examples `state.index`; raise UsageError if they are missing."""
        if not state.recording(self):
            return self.assign(regret, state)
        weights = self.table.read(state.index)
        if weights.shape[1] != len(regret):
            raise UsageError(f"Expected {weights.shape[1]} members, as in the dataset pass, got {len(regret)}.")
        return weights.transpose(0, 1).to(regret.dtype)


class ToTeacher(DatasetPass):
    """The distillation cost of MCL-KD, Mun et al. 2018: CE(softmax(t_m / T), softmax(z_m / T)).

    The teacher t_m of a member is the same member at the end of independent training. Teachers are frozen, so their
    logits for the training set are computed only once.

    Args:
        temperature: The temperature T.
        after: The duration of independent training, after which the teachers' logits are stored.
    """

    def __init__(self, *, temperature: float, after: Duration) -> None:
        super().__init__(ExampleBuffer())
        self.temperature = temperature
        self.after = after

    def due(self, state: State) -> bool:  # noqa: D102
        return state.at_epoch() > state.epochs_in(self.after, "pretrain") and self.table.stamp == 0

    def record(self, logits: Tensor, target: Tensor, state: State) -> None:  # noqa: D102
        self.table.write(state.index, to_float32(logits).transpose(0, 1))

    def forward(self, logits: Tensor, target: Tensor, state: State) -> Tensor:
        """Return the cost (M, B) of logits (M, B, C, …); raise UsageError outside of training."""
        if not state.recording(self):
            raise UsageError(
                "MCL-KD has teachers only for training examples. For other data, compute errors instead of the loss."
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
    """Run the dataset passes of an objective that are due; call this function before every epoch.

    Args:
        objective: The objective whose `DatasetPass` modules store the results.
        ensemble: The ensemble, a callable that maps inputs to an `EnsembleOutput`. A module is run in evaluation mode.
        batches: Batches (x, target, index) of the training set; in distributed training, only this process's part.
        state: The state of training.

    Returns:
        Whether a pass was due. If not, `batches` is not read.
    """
    due = [part for part in objective.modules() if isinstance(part, DatasetPass) and part.due(state)]
    if not due:
        return False
    for part in due:
        part.table.clear()  # another process may own the row of an earlier pass
    for (_, target, index), output in outputs(ensemble, batches):
        for part in due:
            part.record(output.logits, target, replace(state, index=index))
    for part in due:
        part.table.gather()
        part.finish(state)
        part.table.stamp = state.at_epoch()
    return True

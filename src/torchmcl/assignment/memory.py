from typing import Any

import torch
from torch import Tensor, nn

from torchmcl._utils.distributed import all_sum
from torchmcl.assignment.rules import Assignment, balanced, loss_independent, top_k
from torchmcl.errors import UsageError
from torchmcl.structures.output import describe
from torchmcl.structures.state import State


class Memory(nn.Module):
    """How often each member took each class: `counts` (classes, M); and whose each class is: `flags` (classes, M).

    Counts are summed over all processes at every step, so that they are the same everywhere and any process's
    checkpoint has the whole. The first recall that may record (see `State.record`) fixes the flags, once: each class
    belongs to the k members that took it most (of equals, the first; so too for a class never seen). With `balance`,
    each member owns as many classes as any other, to within one, and the counts kept are the most possible. Counts are
    whole numbers until an example is weighted.

    >>> memory = Memory(classes=2, members=3, k=1)
    >>> memory.record(torch.tensor([[0, 0, 1], [1, 1, 0], [0, 0, 0]]), torch.tensor([0, 0, 1]))
    >>> memory.counts
    tensor([[0, 2, 0],
            [1, 0, 0]])
    >>> memory.recall(torch.zeros(3, 1), State(group=torch.tensor([1])))
    tensor([[1.],
            [0.],
            [0.]])
    """

    counts: Tensor
    flags: Tensor

    def __init__(self, classes: int, members: int, *, k: int = 1, balance: bool = False) -> None:
        super().__init__()
        self.k = k
        self.balance = balance
        self.fixed = False
        self.register_buffer("counts", torch.zeros(classes, members, dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(classes, members, dtype=torch.bool))

    def record(self, weights: Tensor, group: Tensor | None, sample_weight: Tensor | None = None) -> None:
        """Count that `weights` (M, B) of 0 and 1 were assigned to examples of `group` (B,), `sample_weight` (B,) times.

        >>> memory = Memory(classes=2, members=1)
        >>> memory.record(torch.ones(1, 3), torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.5, 2.0]))
        >>> memory.counts.flatten()
        tensor([1.5000, 2.0000], dtype=torch.float64)
        """
        if self.fixed:
            return
        group = self._inspect(weights, group)
        if sample_weight is not None and not self.counts.is_floating_point():
            # In float64 whole weights count exactly as so many examples; MPS has none.
            self.counts = self.counts.to(torch.float32 if self.counts.device.type == "mps" else torch.float64)
        by_example = weights.T.to(self.counts.dtype)
        if sample_weight is not None:
            by_example = by_example * sample_weight[:, None].to(by_example.dtype)
        new = torch.zeros_like(self.counts).index_add_(0, group, by_example)
        self.counts += all_sum(new)

    @loss_independent
    def recall(self, regret: Tensor, state: State) -> Tensor:
        """The assignment of the memory-based phase: flags of each example's class, whatever the regret (M, B)."""
        group = self._inspect(regret, state.group)
        if state.recording(self):
            self.fix()
        return (self.flags if self.fixed else self._decide())[group].T.to(regret.dtype)

    def fix(self) -> None:
        """Decide whose each class is, from the counts so far, for good."""
        if not self.fixed:
            self.flags.copy_(self._decide())
            self.fixed = True

    def _decide(self) -> Tensor:
        if not self.counts.any():
            raise UsageError(
                "Expected counts of which member took which class, got none: "
                "train at least one epoch of loss-based assignment (warmup >= 1) before the memory is used."
            )
        return balanced(self.counts, self.k) if self.balance else top_k(self.counts, self.k, dim=1)

    def _inspect(self, by_member: Tensor, group: Tensor | None) -> Tensor:
        classes, members = self.counts.shape
        if group is None:
            raise UsageError("Expected state.group (B,), the class of each image that the memory counts, got none.")
        if group.shape != by_member.shape[1:] or len(by_member) != members:
            raise UsageError(
                f"Expected {members} members and a group (B,) for each example, "
                f"got {len(by_member)} members, {by_member.shape[1]} examples and group {describe(group)}."
            )
        if group.device.type == "cpu" and (int(group.min()) < 0 or int(group.max()) >= classes):
            raise UsageError(
                f"Expected groups from 0 to {classes - 1}, got {int(group.min())} to {int(group.max())}. "
                "Build the method with groups=… where they are not the classes."
            )
        return group

    def get_extra_state(self) -> Tensor:
        """Whether the flags are fixed; not a buffer, so that asking never waits for the device."""
        return torch.tensor(self.fixed)

    def set_extra_state(self, state: Any) -> None:
        """Load it back."""
        self.fixed = bool(state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if (saved := state_dict.get(prefix + "counts")) is not None:  # a checkpoint decides whether they are whole
            self.counts = self.counts.to(saved.dtype)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Record(nn.Module):
    """Another assignment, counted in a memory where the state allows it: AMCL's first epochs."""

    def __init__(self, assign: Assignment, memory: Memory) -> None:
        super().__init__()
        self.assign = assign
        self.memory = memory

    def forward(self, regret: Tensor, state: State) -> Tensor:
        """(M, B) -> (M, B)."""
        weights = self.assign(regret, state)
        if state.recording(self):
            self.memory.record(weights, state.group, state.sample_weight)
        return weights

from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from torchmcl._utils.distributed import all_sum
from torchmcl.assignment.rules import Assignment, balanced, loss_independent, top_k
from torchmcl.errors import UsageError
from torchmcl.structures.output import describe
from torchmcl.structures.state import State


class Memory(nn.Module):
    """The memory of AMCL, which counts how often each member takes each class and then assigns classes to members.

    Implements section 3.2 and eq. 6 of Kim et al. 2022. The buffer `counts` (classes, M) is summed over all processes
    at every step; its type is int64 until sample weights are used. The first call to `recall` with recording enabled
    (see `State.record`) fixes the buffer `flags` (classes, M), which assigns each class to the k members that took it
    most often. Ties go to the first member.

    Args:
        classes: The number of classes or groups.
        members: The number of members M.
        k: The number of members that own each class.
        balance: Whether all members own the same number of classes, to within one; see `balanced`.
        stable: Whether to store the counts at the start of each epoch, which `settled` needs.
        shuffle: Whether each class gets the owners of another, random class, as a control of what the owners are worth.
            The permutation depends only on the owners, so that it is the same in all processes.

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
    earlier: Tensor

    def __init__(
        self,
        classes: int,
        members: int,
        *,
        k: int = 1,
        balance: bool = False,
        stable: bool = False,
        shuffle: bool = False,
    ) -> None:
        super().__init__()
        self.k = k
        self.balance = balance
        self.shuffle = shuffle
        self.fixed = False
        self.register_buffer("counts", torch.zeros(classes, members, dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(classes, members, dtype=torch.bool))
        self.stable, self.epoch = stable, 0
        if stable:
            self.register_buffer("earlier", torch.zeros_like(self.counts))

    def record(self, weights: Tensor, group: Tensor | None, sample_weight: Tensor | None = None) -> None:
        """Add `weights` (M, B) of 0 or 1, scaled by `sample_weight` (B,), to the counts of the classes `group` (B,).

        Once the flags are fixed, nothing is added. Raises UsageError if shapes do not match or a group is out of range.

        >>> memory = Memory(classes=2, members=1)
        >>> memory.record(torch.ones(1, 3), torch.tensor([0, 0, 1]), torch.tensor([1.0, 0.5, 2.0]))
        >>> memory.counts.flatten()
        tensor([1.5000, 2.0000], dtype=torch.float64)
        """
        if self.fixed:
            return
        group = self._inspect(weights, group)
        if sample_weight is not None and not self.counts.is_floating_point():
            # Integer weights are counted exactly in float64, which MPS does not support.
            self.counts = self.counts.to(torch.float32 if self.counts.device.type == "mps" else torch.float64)
        by_example = weights.T.to(self.counts.dtype)
        if sample_weight is not None:
            by_example = by_example * sample_weight[:, None].to(by_example.dtype)
        new = torch.zeros_like(self.counts).index_add_(0, group, by_example)
        self.counts += all_sum(new)

    @loss_independent
    def recall(self, regret: Tensor, state: State) -> Tensor:
        """Return the flags of each example's class as weights (M, B, …); the values of `regret` are ignored."""
        group = self._inspect(regret, state.group)
        if state.recording(self):
            self.fix()
        weights = (self.flags if self.fixed else self._decide())[group].T.to(regret.dtype)
        return weights.reshape(*weights.shape, *[1] * (regret.ndim - 2)).expand_as(regret)

    def settled(self, state: State) -> bool:
        """Return, before the first batch of an epoch, whether the owners of all classes have settled; later, False.

        They have settled if the k members that took a class most often are the same in the last epoch, in all epochs
        before it, and in all epochs together.

        >>> memory = Memory(classes=1, members=2, stable=True)
        >>> taken, group = torch.tensor([[1], [0]]), torch.tensor([0])
        >>> [memory.settled(State(epoch)) or memory.record(taken, group) for epoch in (1, 2, 3)]
        [None, None, True]
        """
        if state.at_epoch() == self.epoch:
            return False
        total, earlier = self.counts, self.earlier
        owners, *others = (top_k(counts, self.k, dim=1) for counts in (total, earlier, total - earlier))
        self.epoch, self.earlier = state.at_epoch(), total.clone()
        # Reading the result synchronises the device, once per epoch.
        return bool(earlier.any()) and all(torch.equal(owners, other) for other in others)

    def fix(self) -> None:
        """Fix the owners of each class permanently, based on the current counts."""
        if not self.fixed:
            self.flags.copy_(self._decide())
            self.fixed = True

    def _decide(self) -> Tensor:
        if not self.counts.any():
            raise UsageError("The memory is empty. Train with loss-based assignment first (warmup >= 1).")
        owners = balanced(self.counts, self.k) if self.balance else top_k(self.counts, self.k, dim=1)
        if not self.shuffle:
            return owners
        generator = torch.Generator().manual_seed(crc32(owners.cpu().numpy().tobytes()))
        return owners[torch.randperm(len(owners), generator=generator).to(owners.device)]

    def _inspect(self, by_member: Tensor, group: Tensor | None) -> Tensor:
        classes, members = self.counts.shape
        if group is None:
            raise UsageError("The memory needs the class or group of each example. Pass state.group (B,).")
        if group.shape != by_member.shape[1:2] or len(by_member) != members:
            raise UsageError(
                f"Expected {members} members and one group per example (B,), "
                f"got {len(by_member)} members, {by_member.shape[1]} examples and group {describe(group)}."
            )
        if group.device.type == "cpu" and (int(group.min()) < 0 or int(group.max()) >= classes):
            raise UsageError(
                f"Expected groups from 0 to {classes - 1}, got {int(group.min())} to {int(group.max())}. "
                "If groups are not the classes, build the method with groups=…."
            )
        return group

    def get_extra_state(self) -> Tensor:
        """Return whether the flags are fixed, as extra state because reading a buffer would synchronise the device.

        With `stable`, also return the epoch of the counts in `earlier`.
        """
        return torch.tensor([self.fixed, self.epoch] if self.stable else self.fixed)

    def set_extra_state(self, state: Any) -> None:
        """Restore the value that `get_extra_state` returned."""
        self.fixed = bool(state.flatten()[0])
        self.epoch = int(state[1]) if self.stable else 0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("counts", "earlier"):  # saved as integers or floats
            if (saved := state_dict.get(prefix + name)) is not None and name in self._buffers:
                setattr(self, name, getattr(self, name).to(saved.dtype))
        super()._load_from_state_dict(state_dict, prefix, *args)


class Record(nn.Module):
    """Apply an assignment and count it in a memory if the state allows recording, as in AMCL's warm-up."""

    def __init__(self, assign: Assignment, memory: Memory) -> None:
        super().__init__()
        self.assign = assign
        self.memory = memory

    def forward(self, regret: Tensor, state: State) -> Tensor:
        """Return the weights (M, B, …) for regrets (M, B, …); the targets of an example count as one example."""
        weights = self.assign(regret, state)
        if state.recording(self):
            weight = state.sample_weight
            if regret.ndim > 2 and weight is None:  # shares of an example are counted as floating point numbers
                weight = regret.new_ones(regret.shape[1])
            self.memory.record(state.by_example(weights), state.group, weight)
        return weights

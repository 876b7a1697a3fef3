from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.analysis.evaluated import Evaluated
from torchmcl.analysis.recorder import Recorder


@dataclass(frozen=True, eq=False, kw_only=True)
class RunEvaluation(Evaluated):
    """A trained run with the values recorded on the test set and on unseen data, from which figures are drawn.

    Args:
        test: the values recorded on the test set
        unseen: the values recorded on unseen data
        unseen_name: the name of the unseen data
        assignment_history: the number of loss-based assignments in each epoch, (epochs, groups, M)
    """

    test: Recorder
    unseen: Recorder | None = None
    unseen_name: str = ""
    assignment_history: NDArray[np.float32] | None = None

    @property
    def dense(self) -> bool:
        """Whether the run predicts masks."""
        return self.specialists.model_config.dense

    @property
    def has_images(self) -> bool:
        """Whether the examples are images."""
        return len(self.examples.images.shape) == 4

    @property
    def auxiliary(self) -> bool:
        """Whether the members have an auxiliary class."""
        return self.specialists.method.auxiliary

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups that are assigned to members: classes, or groups of images."""
        by_group = self.examples.groups and self.specialists.model_config.unit == "image"
        return self.examples.groups if by_group else self.examples.classes

    @cached_property
    def assigned(self) -> Tensor | None:
        """How many examples of each group each member took in the last epoch, (groups, M), or None if unknown."""
        taken = torch.tensor(self.training_metrics.get("assigned", []), dtype=torch.float32)
        return taken if taken.shape == (len(self.groups), self.members) else None

    @cached_property
    def owners(self) -> Tensor | None:
        """Whether each member owns each group, bool (groups, M) (see `Method.owners`); None if unknown."""
        memory = self.specialists.memory
        if memory is not None and memory.flags.shape != (len(self.groups), self.members):
            memory = None
        return self.specialists.method.owners(memory, self.assigned)

    @cached_property
    def own(self) -> Tensor | None:
        """Whether each member owns the group of each test example, bool (N, M), or None if this is unknown."""
        has_group = self.examples.labels.ndim == 1 and self.groups == self.examples.label_names
        return self.owners[self.examples.labels] if has_group and self.owners is not None else None

    @property
    def specialised(self) -> bool:
        """Whether at least one test example belongs to a group that not all members own."""
        return self.own is not None and not bool(self.own.all())

    def images(self, chosen: Sequence[int]) -> Tensor:
        """Return the test images (B, C, H, W) with the indices `chosen`, without preprocessing."""
        return self.examples.subset(list(chosen)).images[torch.arange(len(chosen))]

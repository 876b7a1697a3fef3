from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmcl.analysis.recorder import Recorder
from torchmcl.data.examples import Examples
from torchmcl.inference.predictor import Specialists


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """A trained run and all it said of its test set, and of unseen data, asked once: what every figure is made of.

    Args:
        name: what it is called in figures
        specialists: the ensemble
        examples: the test set
        test: what was noted of it, see `Recorder`
        metrics: what was measured on it, as `torchmcl evaluate` says it
        unseen: what was noted of other things
        unseen_name: what they are
        kept: what the training left in metrics.json
        config: the options that it was started with
        history: a row of log.csv for each epoch
        assignment_history: what members wanted of each class in each epoch, (epochs, groups, M)
        run: its folder
    """

    name: str
    specialists: Specialists
    examples: Examples
    test: Recorder
    metrics: dict[str, Any]
    unseen: Recorder | None = None
    unseen_name: str = ""
    kept: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    history: Sequence[dict[str, Any]] = ()
    assignment_history: NDArray[np.float32] | None = None
    run: str = ""

    @property
    def members(self) -> int:
        """How many there are."""
        return self.specialists.method.members

    @property
    def dense(self) -> bool:
        """Whether each pixel has an answer."""
        return self.specialists.model_config.dense

    @property
    def pictures(self) -> bool:
        """Whether the examples can be shown."""
        return len(self.examples.images.shape) == 4

    @property
    def auxiliary(self) -> bool:
        """Whether members can say that an example is not theirs."""
        return self.specialists.method.auxiliary

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of what members share among them: classes, or groups of images."""
        by_group = self.examples.groups and self.specialists.model_config.unit == "image"
        return self.examples.groups if by_group else self.examples.classes

    @cached_property
    def assigned(self) -> Tensor | None:
        """What each member took of each group in the last epoch, (groups, M); None where no training left it."""
        taken = torch.tensor(self.kept.get("assigned", []), dtype=torch.float32)
        return taken if taken.shape == (len(self.groups), self.members) else None

    @cached_property
    def owners(self) -> Tensor | None:
        """Which members own each group, bool (groups, M), see `Method.owners`; None where no training says so."""
        memory = self.specialists.memory
        fits = memory is None or memory.flags.shape == (len(self.groups), self.members)
        return self.specialists.method.owners(memory if fits else None, self.assigned)

    @property
    def k(self) -> int:
        """How many members take each example."""
        return self.specialists.method.k

    @cached_property
    def own(self) -> Tensor | None:
        """Whether each test example is a member's own, bool (N, M); None where that cannot be said of an example."""
        whole = self.examples.labels.ndim == 1 and self.groups == self.examples.label_names
        return self.owners[self.examples.labels] if whole and self.owners is not None else None

    @property
    def specialised(self) -> bool:
        """Whether some examples are one member's and not another's."""
        return self.own is not None and not bool(self.own.all())

    def images(self, chosen: Sequence[int]) -> Tensor:
        """Test images (K, C, H, W) as they were read."""
        few = self.examples.subset(list(chosen)).images
        return few[torch.arange(len(chosen))]

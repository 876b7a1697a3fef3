from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from torchmcl._utils.distributed import all_sum
from torchmcl.errors import UsageError
from torchmcl.structures.output import EnsembleOutput, describe
from torchmcl.structures.state import State

Cost = Callable[[Tensor, Tensor, State], Tensor]
C = TypeVar("C", bound=Cost)


def memberwise(cost: C) -> C:
    """Mark a cost that is the same for a member whether or not the others' logits are there."""
    cost.memberwise = True  # type: ignore[attr-defined]
    return cost


class EvaluationBatch(NamedTuple):
    """A batch that is evaluated: `target` (B, …), the members' `output`, what is `combined` of it, and `index` (B,)."""

    target: Tensor
    output: EnsembleOutput
    combined: Tensor
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of that name


class Task(ABC):
    """Base class of tasks. Derive a frozen dataclass from it for a task of your own.

    `loss` and `outputs` are required. `classes` is the number of classes where a softmax of the outputs is a
    distribution over them, otherwise None. `monitor` names the metric that early stopping watches; lower is better.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Regression(Task):
    ...     outputs: int
    ...     def loss(self, outputs, target, state):
    ...         return (outputs - target).square().mean(2)
    >>> from torchmcl import methods
    >>> objective = methods.build("smcl", members=2, task=Regression(1)).new_objective()
    >>> objective(torch.tensor([[[1.0]], [[4.0]]]), torch.tensor([[3.0]])).loss
    tensor(1.)
    """

    outputs: int
    classes: int | None = None
    ignore_index: int | None = None
    monitor: ClassVar[str] = "ensemble_loss"

    @property
    def name(self) -> str:
        """The name of its class, for messages."""
        return type(self).__name__

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor, state: State) -> Tensor:
        """The loss of each member on each example: outputs (M, B, …), target (B, …) -> (M, B)."""

    def check(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Check a batch of targets (B, …) against outputs (M, B, …) and return them in the type that `loss` needs.

        Raises:
            UsageError: if there is not one target per example
        """
        if len(target) != outputs.shape[1]:
            raise UsageError(f"Expected one target per example, got {describe(outputs)} and {describe(target)}.")
        return target

    def combine(self, output: EnsembleOutput | Tensor) -> Tensor:
        """The ensemble's prediction from outputs (M, B, …): their mean (B, …)."""
        return EnsembleOutput.of(output).logits.mean(0)

    def metrics(self, output: EnsembleOutput, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Metrics per example, (B,) each, of which the mean over a set is reported."""
        target = self.check(output.logits, target)
        each = self.loss(output.logits, target, State())
        return {"oracle_loss": each.amin(0), "ensemble_loss": self.loss(combined[None], target, State())[0]}

    def group(self, target: Tensor) -> Tensor | None:
        """The group of each example that a memory counts, (B,), or None where targets do not tell."""
        return None

    def valid(self, target: Tensor) -> Tensor | None:
        """Which targets count, bool (B, …); None where all do."""
        return None

    def counted(self, target: Tensor) -> Tensor | None:
        """Which examples have a target that counts, bool (B,); None where all have."""
        return None

    def prepare(self, outputs: Tensor, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Check targets and complete the state with the group and the weights of the loss."""
        if state.sample_weight is not None:
            _check_weight(state.sample_weight, outputs.shape[1])
        target = self.check(outputs, target)
        group = self.group(target) if state.group is None else state.group
        return target, replace(state, group=group, shared={})

    def evaluate(self, batches: Iterable[EvaluationBatch], names: tuple[str, ...] = ()) -> dict[str, Any]:
        """The content of metrics.json on a set, in one pass: here the mean of each of `metrics`.

        Over several processes each passes over its part. `names` are those of the classes.
        """
        sums: dict[str, Tensor] = {}
        count = torch.zeros((), dtype=torch.int64)
        for batch in batches:
            for name, values in self.metrics(batch.output, batch.combined, batch.target).items():
                sums[name] = sums.get(name, values.new_zeros((), dtype=torch.float64)) + values.double().sum()
            count = count.to(batch.target.device) + len(batch.target)
        examples = int(all_sum(count))
        return {
            **{name: round(float(all_sum(value)) / examples, 6) for name, value in sums.items()},
            "examples": examples,
        }


def _check_weight(weight: Tensor, B: int) -> None:
    if weight.shape != (B,) or not weight.is_floating_point():
        raise UsageError(f"Expected a floating point sample_weight (B,) = ({B},), got {describe(weight)}.")
    if weight.device.type == "cpu" and not (bool((weight >= 0).all()) and 0 < float(weight.sum()) < float("inf")):
        raise UsageError(
            "Expected sample weights from 0 on, finite and not all zero, "
            f"got {float(weight.min()):g} to {float(weight.max()):g}."
        )

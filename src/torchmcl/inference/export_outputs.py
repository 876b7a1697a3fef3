"""The outputs of an exported graph: their names, their values, and how an exported form is compared with the model.

`outputs_of` is a generic function of the task; register a function for the class of a task of your own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, final

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.inference.predictor import Specialists
from torchmcl.metrics import oracle_squared_errors
from torchmcl.structures.output import per_example
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels, Regression
from torchmcl.tasks.labels import percent

Values = Mapping[str, Tensor]


class Outputs(ABC):
    """The outputs of a graph for one kind of task."""

    names: tuple[str, ...]
    unit: str  # of `error`

    @abstractmethod
    def of(self, answer: Any, specialists: Specialists) -> tuple[Tensor, ...]:
        """Return the outputs for an answer, in the order of `names`."""

    @abstractmethod
    def difference(
        self, expected: Values, got: Values, specialists: Specialists, tolerance: float
    ) -> tuple[float, bool]:
        """Return the largest difference of two sets of outputs, and whether the discrete outputs agree."""

    @abstractmethod
    def error(self, batches: Sequence[tuple[Values, Tensor]]) -> float:
        """Return the error of the outputs for batches with their targets."""


@final
class ClassOutputs(Outputs):
    """Labels and probabilities, for classification and segmentation."""

    names = ("label", "probabilities", "members", "auxiliary", "claim", "claimed", "accepted")
    unit = "%"

    def of(self, answer: Any, specialists: Specialists) -> tuple[Tensor, ...]:
        """Return the outputs for an answer, in the order of `names`."""
        members = answer.members[:, :, : len(specialists.classes)]
        has_auxiliary = specialists.method.auxiliary
        auxiliary = answer.members[:, :, -1] if has_auxiliary else torch.zeros_like(answer.members[:, :, 0])
        claim = 1 - auxiliary.amin(0)
        return answer.label, answer.probabilities, members, auxiliary, claim, answer.claimed, answer.accepted

    def difference(
        self, expected: Values, got: Values, specialists: Specialists, tolerance: float
    ) -> tuple[float, bool]:
        """Compare probabilities; labels, claims and acceptance only where they do not depend on rounding."""
        numbers = ("probabilities", "members", "auxiliary", "claim")
        off = max(float((expected[name] - got[name]).abs().max()) for name in numbers)
        rejection = specialists.model_config.rejection
        first, second = expected["probabilities"].topk(2, dim=1).values.unbind(1)
        threshold = 0.5 if rejection.claim_threshold is None else rejection.claim_threshold
        claims = (expected["claim"] - threshold).abs() > tolerance
        accepted = (per_example(first) - rejection.threshold).abs() > tolerance
        accepted &= claims if claims.ndim == 1 else claims.flatten(1).all(1)
        clear = {"label": first - second > tolerance, "claimed": claims, "accepted": accepted}
        return off, all(bool(((expected[name] == got[name]) | ~clear[name]).all()) for name in clear)

    def error(self, batches: Sequence[tuple[Values, Tensor]]) -> float:
        """Return the percentage of examples, or of pixels, that are predicted incorrectly."""
        return percent(torch.cat([(values["label"] != y).flatten() for values, y in batches]).double().mean())


@final
class NumberOutputs(Outputs):
    """Hypotheses, scores and the mean in the units of the targets, for regression."""

    names = ("hypotheses", "scores", "mean")
    unit = "(RMSE)"

    def of(self, answer: Any, specialists: Specialists) -> tuple[Tensor, ...]:
        """Return the outputs for an answer, in the order of `names`."""
        return answer.hypotheses, answer.scores, answer.mean

    def difference(
        self, expected: Values, got: Values, specialists: Specialists, tolerance: float
    ) -> tuple[float, bool]:
        """Compare scores, and numbers relative to the deviation of the targets or, if larger, their magnitude.

        The resolution of float32 is relative to the magnitude, so that targets with a large mean are less exact. The
        mean of the hypotheses is as exact as the largest hypothesis.
        """
        task = specialists.method.task
        scale = torch.tensor(getattr(task, "scale", None) or 1.0)
        mean = torch.tensor(getattr(task, "mean", None) or 0.0)
        unit = torch.maximum(scale, 0.05 * mean.abs())
        off = float((expected["scores"] - got["scores"]).abs().max())
        size = torch.maximum(unit, (expected["hypotheses"] - mean).abs())  # (M, B, D)
        for name, each in (("hypotheses", size), ("mean", size.amax(0))):
            off = max(off, float(((expected[name] - got[name]) / each).abs().max()))
        return off, True

    def error(self, batches: Sequence[tuple[Values, Tensor]]) -> float:
        """Return the RMSE of the mean of the hypotheses."""
        errors = torch.cat([oracle_squared_errors(values["mean"][None], y) for values, y in batches])
        return float(f"{errors.double().mean().sqrt():.8g}")


@singledispatch
def outputs_of(task: Task) -> Outputs:
    """Return the outputs of an exported graph for a task; raise UsageError if the task cannot be exported."""
    raise UsageError(f"Cannot export the task {task.name}. Export classification, segmentation or regression.")


@outputs_of.register
def _(task: Labels) -> Outputs:
    return ClassOutputs()


@outputs_of.register
def _(task: Regression) -> Outputs:
    return NumberOutputs()

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.inference import hypotheses as densities
from torchmcl.structures.output import EnsembleOutput
from torchmcl.tasks.combiners import most_probable, weighted_mean
from torchmcl.tasks.regression import Regression


@dataclass(frozen=True, eq=False)
class RegressionAnswer:
    """The predictions of an ensemble for a batch of examples with continuous targets, in the units of the targets.

    Attributes:
        hypotheses: the members' predictions (M, B, D)
        scores: the probability of each hypothesis (M, B), which sums to 1 over M
        mean: the mean of the hypotheses, weighted by their scores (B, D)
        most_probable: the hypothesis with the highest score (B, D)
        outputs: the members' outputs (M, B, C) in standardised units, from which the other values are computed
        task: the task, which defines the units and the density of the targets

    >>> answer = RegressionAnswer.of(Regression(1, bandwidth=0.1), torch.tensor([[[0.0]], [[2.0]]]))
    >>> answer.mean, answer.sample(3).shape, answer.log_density(torch.tensor([[2.0]])).exp()
    (tensor([[1.]]), torch.Size([3, 1, 1]), tensor([1.9947]))
    """

    hypotheses: Tensor
    scores: Tensor
    mean: Tensor
    most_probable: Tensor
    outputs: Tensor
    task: Regression

    @classmethod
    def of(cls, task: Regression, output: EnsembleOutput | Tensor) -> "RegressionAnswer":
        """Create the answer from the members' outputs (M, B, C)."""
        logits = EnsembleOutput.of(output).logits
        found, scores = task.hypotheses(logits), task.scores(logits)
        return cls(found, scores, weighted_mean(found, scores), most_probable(found, scores), logits, task)

    @property
    def scales(self) -> Tensor | None:
        """The scales of the hypotheses (M, B, D), if the members predict them or calibration has set them."""
        return self.task.scales(self.outputs)

    def log_density(self, target: Any) -> Tensor:
        """Return the log-density of targets, a tensor or array (B, D), or (B, T, D) for several per example: (B,).

        Raises:
            UsageError: if no density is defined.
        """
        target = torch.as_tensor(target, device=self.outputs.device)
        found = self.task.log_density(self.outputs, target)
        if found is None:
            raise self._no_density()
        return found

    def sample(self, count: int, *, seed: int = 0) -> Tensor:
        """Draw samples from the density of the targets, (count, B, D).

        Raises:
            UsageError: if no density is defined, or `count` is less than 1.
        """
        task = self.task
        if task.kernel is None:
            raise self._no_density()
        if task.bandwidth is None:
            scales = task.scales(self.outputs)
            assert scales is not None
            return densities.sample_mixture(self.hypotheses, self.scores, scales, count, kernel=task.kernel, seed=seed)
        found = self.outputs[:, :, : task.targets]  # cells and kernels are those of the standardised targets
        return task.to_units(densities.sample(found, self.scores, count, bandwidth=task.bandwidth, seed=seed))

    def _no_density(self) -> UsageError:
        return UsageError(
            "The model has no density of the targets. Call specialists.calibrate(validation), or train with the loss "
            "gaussian or laplace."
        )

    def row(self, i: int, classes: Sequence[str] = ()) -> dict[str, Any]:
        """Return the answer for one example as plain values."""
        row = {"mean": self.mean[i], "most_probable": self.most_probable[i]}
        row |= {"hypotheses": self.hypotheses[:, i], "scores": self.scores[:, i]}
        return {name: value.tolist() for name, value in row.items()}

    def to(self, device: str | torch.device) -> "RegressionAnswer":
        """Return a copy on another device."""
        return self.of(self.task, self.outputs.to(device))

    @classmethod
    def cat(cls, answers: Sequence["RegressionAnswer"]) -> "RegressionAnswer":
        """Concatenate the answers for successive batches."""
        return cls.of(answers[0].task, torch.cat([one.outputs for one in answers], dim=1))

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchmcl.analysis.evaluated import Evaluated
from torchmcl.data.examples import Examples
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import RegressionAnswer, Specialists
from torchmcl.structures.task import EvaluationBatch
from torchmcl.structures.values import valid_rows
from torchmcl.tasks import Regression
from torchmcl.training.evaluate import evaluation_batches


@dataclass(frozen=True, eq=False, kw_only=True)
class RegressionEvaluation(Evaluated):
    """A trained run with continuous targets and its answers on the test set, from which figures are drawn.

    Args:
        answer: the answers for all test examples
    """

    answer: RegressionAnswer

    @property
    def task(self) -> Regression:
        """The task, with the units and the density of the targets."""
        return cast(Regression, self.specialists.method.task)

    def rows(self, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the index of the example and the values of each target, (R,) and (R, D), without padding.

        If there are more than `limit` targets, `limit` evenly spaced ones are returned.
        """
        target = self.examples.target
        several = target.unsqueeze(1) if target.ndim == 2 else target
        example, position = valid_rows(several).nonzero(as_tuple=True)
        if limit is not None and len(example) > limit:
            chosen = torch.linspace(0, len(example) - 1, limit).round().long()
            example, position = example[chosen], position[chosen]
        return example, several[example, position]


def evaluate_regression(specialists: Specialists, examples: Examples) -> tuple[dict[str, Any], RegressionAnswer]:
    """Return the metrics of a model on labelled examples and its answers, in one pass."""
    method, outputs = specialists.method, []

    def recorded(batches: Iterator[EvaluationBatch]) -> Iterator[EvaluationBatch]:
        for batch in batches:
            outputs.append(batch.output.logits.cpu())
            yield batch

    with feature_loader(specialists, examples) as loader:
        values = method.task.evaluate(recorded(evaluation_batches(method, specialists.ensemble, loader)))
    return values, RegressionAnswer.of(cast(Regression, method.task), torch.cat(outputs, dim=1))

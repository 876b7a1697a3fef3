from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl._utils.distributed import all_gather
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.task import EvaluationBatch
from torchmcl.tasks.labels import Labels, percent, percents


@final
@dataclass(frozen=True, repr=False)
class Classification(Labels):
    """One class per example.

    Args:
        classes: The number of classes C.
        class_weight: The weight of each class in the loss; memories ignore class weights.
        ignore_index: The label of examples to ignore, or None.
        loss: The loss per example, (outputs (M, B, C), target (B,), state) -> (M, B).

    >>> from torchmcl import State
    >>> Classification(3).loss(torch.zeros(1, 2, 3), torch.tensor([0, 2]), State())
    tensor([[1.0986, 1.0986]])
    """

    def metrics(self, output: EnsembleOutput, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return, for each example (B,), whether all members are wrong and whether the ensemble is wrong."""
        index = torch.arange(len(target), device=target.device)
        batch = self._labelled(EvaluationBatch(target, output, combined, index))
        wrong = metrics.members_wrong(batch.output.logits[:, :, : self.classes], batch.target)
        top1_wrong = metrics.top1_wrong(batch.combined, batch.target)
        return {"oracle_error": wrong.all(0).float(), "top1_error": top1_wrong.float()}

    def _labelled(self, batch: EvaluationBatch) -> EvaluationBatch:
        """Select the examples whose label is not ignored; the label of a soft target is its most likely class."""
        label = batch.target.argmax(1) if batch.target.is_floating_point() else batch.target
        if (counted := self.counted(label)) is None:
            return batch._replace(target=label)
        output = EnsembleOutput(batch.output.logits[:, counted])
        return EvaluationBatch(label[counted], output, batch.combined[counted], batch.index[counted])

    def evaluate(self, batches: Iterable[EvaluationBatch], names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return errors and the calibration error in percent, the NLL, the Brier score and median confidences."""
        return summary(*collected(map(self._labelled, batches)), names=names)


@torch.no_grad()
def collected(batches: Iterable[EvaluationBatch]) -> tuple[Tensor, Tensor, Tensor]:
    """Collect member probabilities (M, N, C or C + 1), combined probabilities (N, C) and targets (N,) in one pass.

    In distributed training, each process passes its own part and gets the full result, ordered by example index.
    """
    parts = [
        (batch.index, batch.output.logits.float().softmax(2).transpose(0, 1), batch.combined, batch.target)
        for batch in batches
    ]
    index, members, combined, target = (all_gather(torch.cat(part)) for part in zip(*parts, strict=True))
    order = index.argsort()
    return members[order].transpose(0, 1), combined[order], target[order]


def summary(members: Tensor, combined: Tensor, target: Tensor, *, names: Sequence[str]) -> dict[str, Any]:
    """Compute metrics from member probabilities (M, N, C or C + 1), combined probabilities (N, C) and targets (N,)."""
    real = members[:, :, : combined.shape[1]]
    oracle, top1 = metrics.oracle_error(real, target), metrics.top1_error(combined, target)
    confidence = combined.gather(1, target[:, None])[:, 0]
    return {
        "oracle_error": percent(oracle),
        "oracle_error_strict": percent(metrics.oracle_error(members, target)),
        "top1_error": percent(top1),
        "harmonic_mean": percent(metrics.harmonic_mean(oracle, top1)),
        "members": percents(metrics.member_errors(real, target)),
        "disagreement": percent(metrics.disagreement(real)),
        "ece": percent(metrics.ece(combined, target)),
        "nll": round(float(metrics.nll(combined, target)), 6),
        "brier": round(float(metrics.brier(combined, target)), 6),
        "examples": len(target),
        "median_confidence": {
            names[c]: round(float(confidence[target == c].median()), 6) for c in target.unique().tolist()
        },
    }

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from torchmcl import metrics
from torchmcl._utils.distributed import all_sum
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.state import IGNORE
from torchmcl.structures.task import EvaluationBatch
from torchmcl.tasks.labels import Labels, percent, percents


@final
@dataclass(frozen=True, repr=False)
class Segmentation(Labels):
    """One class per pixel. An image is taken or left as a whole, its loss the mean over its pixels.

    Args:
        classes: the number of classes
        class_weight: the factor of each class in the loss of its pixels
        ignore_index: a label whose pixels do not count, in losses, memories and metrics; None where there is none
        loss: the loss per example, (outputs (M, B, C, …), target (B, …), state) -> (M, B); `state.by_example` averages
            the losses of pixels (M, B, …), those to ignore left out, which are class 0 in `target`

    >>> from torchmcl import State
    >>> task = Segmentation(2, ignore_index=255)
    >>> target, state = task.prepare(torch.zeros(1, 1, 2, 1, 2), torch.tensor([[[1, 255]]]), State())
    >>> task.loss(torch.tensor([[[[[0.0, 9.0]], [[0.0, 0.0]]]]]), target, state)
    tensor([[0.6931]])
    """

    ignore_index: int | None = IGNORE

    def metrics(self, output: EnsembleOutput, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The fraction of wrong pixels of the best member, and of the ensemble: (B,) each."""
        if (counted := self.counted(target)) is not None:
            output, combined, target = EnsembleOutput(output.logits[:, counted]), combined[counted], target[counted]
        if not len(target):
            return {"oracle_error": combined.new_zeros(0), "top1_error": combined.new_zeros(0)}
        members = metrics.pixel_errors(output.logits[:, :, : self.classes], target, self.ignore_index)
        together = metrics.pixel_errors(combined[None], target, self.ignore_index)[0]
        return {"oracle_error": members.amin(0), "top1_error": together}

    @torch.no_grad()
    def evaluate(self, batches: Iterable[EvaluationBatch], names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Errors in percent of the pixels, batch by batch: masks of a whole set are never held at once.

        Auxiliary pixels count as the best real class, as in the paper's post-processing, or, `strict`, as wrong.
        """
        found: dict[str, Any] = {}
        examples = torch.zeros((), dtype=torch.int64)
        for batch in batches:
            members = batch.output.logits.float().softmax(2)
            found = found or self._stateful(len(members), members.device)
            real = members[:, :, : self.classes]
            for name, probabilities in (
                ("oracle", real),
                ("strict", members),
                ("each", real),
                ("each_strict", members),
            ):
                found[name].update(probabilities, batch.target)
            found["top1"].update(batch.combined, batch.target)
            found["overlap"].update(batch.combined.argmax(1), batch.target)
            examples = examples.to(batch.target.device) + len(batch.target)
        value = {name: metric.compute() for name, metric in found.items()}
        return {
            "oracle_error": percent(value["oracle"]),
            "oracle_error_strict": percent(value["strict"]),
            "top1_error": percent(value["top1"]),
            "harmonic_mean": percent(metrics.harmonic_mean(value["oracle"], value["top1"])),
            "members": percents(value["each"]),
            "members_strict": percents(value["each_strict"]),
            "mean_iou": percent(value["overlap"]),
            "examples": int(all_sum(examples)),
        }

    def _stateful(self, members: int, device: torch.device) -> dict[str, Any]:
        """Metrics that add up batches."""
        ignored: Any = {"ignore_index": self.ignore_index}
        built: dict[str, Any] = {
            "oracle": metrics.OraclePixelError(**ignored),
            "strict": metrics.OraclePixelError(**ignored),
            "each": metrics.MemberPixelErrors(members, **ignored),
            "each_strict": metrics.MemberPixelErrors(members, **ignored),
            "top1": metrics.Top1PixelError(**ignored),
            "overlap": metrics.MeanIoU(self.classes, **ignored),
        }
        return {name: metric.to(device) for name, metric in built.items()}

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, final

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
    """One class per pixel. Members take or leave whole images; the loss of an image is the mean over its pixels.

    Args:
        classes: The number of classes C.
        class_weight: The weight of each class in the loss of its pixels.
        ignore_index: The label of pixels to ignore in losses, memories and metrics, or None.
        loss: The loss per example, (outputs (M, B, C, …), target (B, …), state) -> (M, B). Ignored pixels have class 0
            in `target`. Average pixel losses (M, B, …) with `state.by_example`, which leaves out ignored pixels.

    >>> from torchmcl import State
    >>> task = Segmentation(2, ignore_index=255)
    >>> target, state = task.prepare(torch.zeros(1, 1, 2, 1, 2), torch.tensor([[[1, 255]]]), State())
    >>> task.loss(torch.tensor([[[[[0.0, 9.0]], [[0.0, 0.0]]]]]), target, state)
    tensor([[0.6931]])
    """

    ignore_index: int | None = IGNORE
    dense: ClassVar[bool] = True

    def metrics(self, output: EnsembleOutput, combined: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the fraction of wrong pixels for the best member and for the ensemble, (B,) each."""
        if (counted := self.counted(target)) is not None:
            output, combined, target = EnsembleOutput(output.logits[:, counted]), combined[counted], target[counted]
        if not len(target):
            return {"oracle_error": combined.new_zeros(0), "top1_error": combined.new_zeros(0)}
        members = metrics.pixel_errors(output.logits[:, :, : self.classes], target, self.ignore_index)
        ensemble = metrics.pixel_errors(combined[None], target, self.ignore_index)[0]
        return {"oracle_error": members.amin(0), "top1_error": ensemble}

    @torch.no_grad()
    def evaluate(self, batches: Iterable[EvaluationBatch], names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return errors in percent of the pixels, computed batch by batch.

        If a member predicts the auxiliary class for a pixel, the most likely real class is used instead, as in the
        paper. In metrics whose names end in `_strict`, such a pixel counts as wrong.
        """
        stateful: dict[str, Any] = {}
        examples = torch.zeros((), dtype=torch.int64)
        for batch in batches:
            members = batch.output.logits.float().softmax(2)
            stateful = stateful or self._stateful(len(members), members.device)
            for name in ("oracle", "each"):
                stateful[name].update(members[:, :, : self.classes], batch.target)
                stateful[f"{name}_strict"].update(members, batch.target)
            stateful["top1"].update(batch.combined, batch.target)
            stateful["overlap"].update(batch.combined.argmax(1), batch.target)
            examples = examples.to(batch.target.device) + len(batch.target)
        value = {name: metric.compute() for name, metric in stateful.items()}
        return {
            "oracle_error": percent(value["oracle"]),
            "oracle_error_strict": percent(value["oracle_strict"]),
            "top1_error": percent(value["top1"]),
            "harmonic_mean": percent(metrics.harmonic_mean(value["oracle"], value["top1"])),
            "members": percents(value["each"]),
            "members_strict": percents(value["each_strict"]),
            "mean_iou": percent(value["overlap"]),
            "examples": int(all_sum(examples)),
        }

    def _stateful(self, members: int, device: torch.device) -> dict[str, Any]:
        """Create the torchmetrics objects that accumulate batches."""
        ignored: Any = {"ignore_index": self.ignore_index}
        built: dict[str, Any] = {
            "oracle": metrics.OraclePixelError(**ignored),
            "oracle_strict": metrics.OraclePixelError(**ignored),
            "each": metrics.MemberPixelErrors(members, **ignored),
            "each_strict": metrics.MemberPixelErrors(members, **ignored),
            "top1": metrics.Top1PixelError(**ignored),
            "overlap": metrics.MeanIoU(self.classes, **ignored),
        }
        return {name: metric.to(device) for name, metric in built.items()}

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl import metrics
from torchmcl.combine import Combiner
from torchmcl.data.external import ExternalLoader
from torchmcl.data.loader import Batch, Loader
from torchmcl.inference import outputs
from torchmcl.methods import Method
from torchmcl.processes import gathered

Also = Callable[[Tensor, Tensor], object]  # given the combined probabilities (B, C, …) and the target of each batch


@torch.no_grad()
def answers(
    method: Method,
    ensemble: nn.Module,
    batches: Iterable[Batch],
    combine: Combiner | None = None,
    also: Also | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One pass over the data -> probabilities of members (M, N, C or C + 1) and combined (N, C), target (N,).

    Over several processes each passes over its part and all have the whole in the end, ordered by number of example.
    """
    combine = combine or method.combine
    parts = []
    for batch, opinions in outputs(ensemble, batches):
        members = opinions.logits.float().softmax(2).transpose(0, 1)
        parts.append((batch.index, members, combine(opinions), batch.target))
        if also is not None:
            also(*parts[-1][2:])
    index, members, combined, target = (gathered(torch.cat(part)) for part in zip(*parts, strict=True))
    order = index.argsort()
    return members[order].transpose(0, 1), combined[order], target[order]


def evaluate(
    method: Method,
    ensemble: nn.Module,
    loader: Loader | ExternalLoader,
    combine: Combiner | None = None,
    also: Also | None = None,
) -> dict[str, Any]:
    """Errors and calibration on labelled examples, in percent except for nll and brier; logits are computed once.

    `combine` replaces the method's own combiner; `also` is called with the combined probabilities and the target of
    each batch.
    """
    if loader.examples.target.ndim > 1:
        return evaluate_pixels(method, ensemble, loader, combine, also)
    return summary(method, *answers(method, ensemble, loader, combine, also), classes=loader.examples.classes)


def summary(
    method: Method, members: Tensor, combined: Tensor, target: Tensor, *, classes: Sequence[str]
) -> dict[str, Any]:
    """Every figure of one set of answers: members (M, N, C or C + 1), combined (N, C), target (N,)."""
    real = members[:, :, : method.classes]
    oracle, top1 = metrics.oracle_error(real, target), metrics.top1_error(combined, target)
    truth = combined.gather(1, target[:, None])[:, 0]
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
            classes[c]: round(float(truth[target == c].median()), 6) for c in target.unique().tolist()
        },
    }


@torch.no_grad()
def evaluate_pixels(
    method: Method,
    ensemble: nn.Module,
    loader: Loader | ExternalLoader,
    combine: Combiner | None = None,
    also: Also | None = None,
) -> dict[str, Any]:
    """Errors in percent of the pixels, batch by batch: masks of a whole set are never held at once.

    Auxiliary pixels count as the best real class, as in the paper's post-processing, or, `strict`, as wrong.
    """
    ignored: Any = {"ignore_index": method.task.ignore_index}
    oracle, strict = metrics.OraclePixelError(**ignored), metrics.OraclePixelError(**ignored)
    each = metrics.MemberPixelErrors(method.members, **ignored)
    each_strict = metrics.MemberPixelErrors(method.members, **ignored)
    top1, overlap = metrics.Top1PixelError(**ignored), metrics.MeanIoU(method.classes, **ignored)
    for metric in (oracle, strict, top1, each, each_strict, overlap):
        metric.to(loader.device)
    for batch, opinions in outputs(ensemble, loader):
        members, combined = opinions.logits.float().softmax(2), (combine or method.combine)(opinions)
        for metric, probabilities in (
            (oracle, members[:, :, : method.classes]),
            (strict, members),
            (each, members[:, :, : method.classes]),
            (each_strict, members),
            (top1, combined),
        ):
            metric.update(probabilities, batch.target)
        overlap.update(combined.argmax(1), batch.target)
        if also is not None:
            also(combined, batch.target)
    return {
        "oracle_error": percent(oracle.compute()),
        "oracle_error_strict": percent(strict.compute()),
        "top1_error": percent(top1.compute()),
        "harmonic_mean": percent(metrics.harmonic_mean(oracle.compute(), top1.compute())),
        "members": percents(each.compute()),
        "members_strict": percents(each_strict.compute()),
        "mean_iou": percent(overlap.compute()),
        "examples": len(loader.examples),
    }


def percent(fraction: Tensor) -> float:
    """A fraction in percent, to a ten-thousandth.

    >>> percent(torch.tensor(0.25))
    25.0
    """
    return round(100 * float(fraction), 4)


def percents(fractions: Tensor) -> list[float]:
    """Fractions in percent; torchmetrics hands the one value of one member over as a scalar."""
    return [percent(fraction) for fraction in fractions.flatten()]

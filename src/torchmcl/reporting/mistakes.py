"""Test images that the ensemble predicts wrongly with the highest confidence, and those that no member claims."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchmcl.analysis.figures.catalogue import Evaluation
from torchmcl.analysis.figures.overlays import overlay
from torchmcl.analysis.images import to_rgb
from torchmcl.analysis.inline import thumbnail
from torchmcl.analysis.run_evaluation import RunEvaluation

MAX_EXAMPLES = 8  # per row of images

Strip = tuple[str, list[dict[str, Any]]]


def mistakes(evaluation: Evaluation) -> list[Strip]:
    """Return rows of images with their titles; none for runs without images."""
    if not isinstance(evaluation, RunEvaluation) or not evaluation.has_images:
        return []
    wrong, confidence = evaluation.test.get("wrong"), evaluation.test.get("confidence")
    if evaluation.dense:
        # The confidence of a mask is an average over its pixels, so the images with the most wrong pixels are shown.
        strips = [_strip(evaluation, "Images with the most wrong pixels", wrong, wrong > 0, _wrong_pixels)]
    else:
        strips = [_strip(evaluation, "Most confident mistakes", confidence, wrong > 0.5, _mistake)]
    if evaluation.auxiliary:
        least = evaluation.test.get("auxiliary").amin(1)
        unclaimed = ~evaluation.test.get("claimed")
        strips.append(_strip(evaluation, "Claimed by no member", least, unclaimed, _unclaimed))
    return strips


def _strip(
    evaluation: RunEvaluation,
    title: str,
    score: Tensor,
    chosen: Tensor,
    describe: Callable[[RunEvaluation, int], str],
) -> Strip:
    """Return the chosen examples with the highest scores, and a title that says how many are chosen."""
    indices = chosen.nonzero()[:, 0]
    shown = indices[score[indices].argsort(descending=True, stable=True)][:MAX_EXAMPLES].tolist()
    number = f"{len(shown)} of {len(indices):,}" if len(shown) < len(indices) else f"{len(indices):,}"
    title = f"{title} ({number})"
    if not shown:
        return title, []
    images, labels = evaluation.images(shown), evaluation.examples.labels
    if evaluation.dense:
        answer = evaluation.specialists.predict(images, batch_size=64)
        classes = len(evaluation.specialists.classes)
        masks = answer.label.masked_fill(~answer.claimed, classes)
        pictures = [overlay(image, mask, auxiliary=classes) for image, mask in zip(images, masks, strict=True)]
    else:
        pictures = [to_rgb(image) for image in images]
    names = evaluation.examples.label_names
    return title, [
        {
            "image": thumbnail(picture),
            "name": names[int(labels[index])] if labels.ndim == 1 else f"image {index}",
            "text": describe(evaluation, index),
        }
        for picture, index in zip(pictures, shown, strict=True)
    ]


def _predicted(evaluation: RunEvaluation, index: int) -> str:
    return evaluation.specialists.classes[int(evaluation.test.get("label")[index])]


def _mistake(evaluation: RunEvaluation, index: int) -> str:
    confidence = 100 * float(evaluation.test.get("confidence")[index])
    member = f", member {int(evaluation.test.get('member')[index]) + 1}" if evaluation.specialised else ""
    claim = member if evaluation.test.get("claimed")[index] else ", no member claims it"
    return f"predicted {_predicted(evaluation, index)}, {confidence:.0f} %{claim}"


def _unclaimed(evaluation: RunEvaluation, index: int) -> str:
    claim = 100 * float(1 - evaluation.test.get("auxiliary")[index].min())
    answer = "" if evaluation.dense else f"otherwise {_predicted(evaluation, index)}, "
    return f"{answer}claim {claim:.0f} %"


def _wrong_pixels(evaluation: RunEvaluation, index: int) -> str:
    return f"{100 * float(evaluation.test.get('wrong')[index]):.1f} % wrong"

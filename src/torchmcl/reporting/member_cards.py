"""The values on the members' cards: the share, the errors, the owned classes and example images."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.figures.catalogue import Evaluation
from torchmcl.analysis.figures.overlays import overlay
from torchmcl.analysis.images import to_rgb
from torchmcl.analysis.inline import thumbnail
from torchmcl.analysis.regression_evaluation import RegressionEvaluation
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.reporting.metric_descriptions import NONE

MAX_EXAMPLES = 4  # per row of images
MEANINGS = {
    "share of all assignments": "Percentage of the last epoch's assignments of training examples to members that went "
    "to this member.",
    "error on own classes": "Percentage of the test examples of the member's own classes that it misclassifies.",
    "error on all classes": "Percentage of all test examples that the member misclassifies. It is high for a "
    "specialist, because it does not learn the other classes.",
    "auxiliary predictions on other classes": "Percentage of the test examples of other classes for which the "
    "member's most probable output is the auxiliary class “not mine”.",
    "closest to a test target": "Percentage of the test targets to which the member's hypothesis is the closest.",
    "mean score": "The probability, averaged over the test set, that the hypothesis is the best one.",
    "RMSE": "Root mean squared error of the member's hypothesis on the test set.",
}


def card(evaluation: Evaluation, m: int) -> dict[str, Any]:
    """Return the values of one member's card."""
    if isinstance(evaluation, RegressionEvaluation):
        facts = _regression_facts(evaluation, m)
        return {"colour": style.line(m)["color"], "facts": _explained(facts), "note": "", "classes": [], "strips": []}
    own = torch.ones(len(evaluation.examples), dtype=torch.bool) if evaluation.own is None else evaluation.own[:, m]
    owned = [] if evaluation.owners is None else evaluation.owners[:, m].nonzero()[:, 0].tolist()
    note = ""
    if evaluation.owners is None:
        note = "The assignments of this run were not recorded."
    elif not owned:
        note = "This member owns no class."
    elif bool(evaluation.owners.all()):
        note = "This member owns all classes, like every other member."
    return {
        "colour": style.line(m)["color"],
        "facts": _explained(_facts(evaluation, m, own)),
        "note": note,
        "classes": [evaluation.groups[group] for group in owned],
        "strips": _strips(evaluation, m, own.nonzero()[:, 0]) if evaluation.has_images and bool(own.any()) else [],
    }


def _explained(facts: list[tuple[str, str]]) -> list[tuple[str, str, str]]:
    return [(name, value, MEANINGS[name]) for name, value in facts]


def _regression_facts(evaluation: RegressionEvaluation, m: int) -> list[tuple[str, str]]:
    values, share = evaluation.metrics, evaluation.training_metrics.get("share")
    facts = [] if share is None else [("share of all assignments", f"{share[m]:.0f} %")]
    return [
        *facts,
        ("closest to a test target", f"{values['winners'][m]:.0f} %"),
        ("mean score", f"{100 * evaluation.answer.scores[m].mean():.0f} %"),
        ("RMSE", f"{values['members'][m]:,.4g}"),
    ]


def _facts(evaluation: RunEvaluation, m: int, own: Tensor) -> list[tuple[str, str]]:
    wrong, assigned = 100 * evaluation.test.get("errors")[:, m], evaluation.assigned
    facts = []
    if assigned is not None:
        facts.append(("share of all assignments", f"{100 * assigned[:, m].sum() / assigned.sum():.0f} %"))
    if evaluation.specialised:
        facts.append(("error on own classes", f"{wrong[own].mean():.1f} %" if bool(own.any()) else NONE))
    facts.append(("error on all classes", f"{wrong.mean():.1f} %"))
    if evaluation.auxiliary and evaluation.specialised and bool((~own).any()):
        left = evaluation.test.get("left")[:, m]
        facts.append(("auxiliary predictions on other classes", f"{100 * left[~own].mean():.0f} %"))
    return facts


def _strips(evaluation: RunEvaluation, m: int, own: Tensor) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the examples with the lowest and the highest loss among those of the member's own classes."""
    loss = evaluation.test.get("cross_entropy")[own, m]
    order = own[loss.argsort(stable=True)].tolist()
    lowest, highest = order[:MAX_EXAMPLES], order[MAX_EXAMPLES:][::-1][:MAX_EXAMPLES]
    strips = {"Lowest loss": lowest, "Highest loss": highest}
    return [(title, _examples(evaluation, m, chosen)) for title, chosen in strips.items() if chosen]


def _examples(evaluation: RunEvaluation, m: int, chosen: Sequence[int]) -> list[dict[str, Any]]:
    """Return the chosen images with their labels and the member's predictions."""
    images, classes = evaluation.images(chosen), evaluation.specialists.classes
    outputs = evaluation.specialists.predict(images, batch_size=64).members[m]
    examples = []
    for image, output, index in zip(images, outputs, chosen, strict=True):
        if evaluation.dense:
            rgb = overlay(image, output.argmax(0), auxiliary=len(classes))
            name = evaluation.groups[int(evaluation.examples.labels[index])] if evaluation.own is not None else ""
            text = f"{100 * float(evaluation.test.get('errors')[index, m]):.1f} % wrong"
        else:
            target, predicted = int(evaluation.examples.target[index]), int(output.argmax())
            rgb, name = to_rgb(image), evaluation.examples.classes[target]
            text = f"predicted {(*classes, 'auxiliary')[predicted]}"
            if predicted == target:
                text = f"{100 * output[target]:.0f} %"
        examples.append({"image": thumbnail(rgb), "name": name, "text": text})
    return examples

"""Members as cards: what each knows, its best and its worst examples."""

from collections.abc import Sequence
from textwrap import shorten

import torch

from torchmcl._utils.html import Markup, tag
from torchmcl.analysis import style
from torchmcl.analysis.figures.overlays import overlay
from torchmcl.analysis.images import to_rgb
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.reporting.inline import thumbnail
from torchmcl.reporting.metric_descriptions import NONE

SHOWN, CHIPS = 4, 12


def cards(evaluation: RunEvaluation) -> Markup:
    """A card for each member."""
    return tag("div", [card(evaluation, m) for m in range(evaluation.members)], class_="cards")


def card(evaluation: RunEvaluation, m: int) -> Markup:
    """One member's."""
    own = torch.ones(len(evaluation.examples), dtype=torch.bool) if evaluation.own is None else evaluation.own[:, m]
    head = tag(
        "h4", tag("span", class_="swatch", style=f"background: {style.line(m)['color']}"), f"Member {m + 1}", id=None
    )
    parts = [head, facts(evaluation, m, own), classes(evaluation, m)]
    if evaluation.has_images and bool(own.any()):
        parts.append(examples(evaluation, m, own.nonzero()[:, 0]))
    return tag("article", parts, class_="card member")


def facts(evaluation: RunEvaluation, m: int, own: torch.Tensor) -> Markup:
    """Its share and its errors."""
    wrong = 100 * evaluation.test.get("errors")[:, m]
    rows = []
    if evaluation.assigned is not None:
        rows.append(
            ("share of all assignments", f"{100 * evaluation.assigned[:, m].sum() / evaluation.assigned.sum():.0f} %")
        )
    if evaluation.specialised:
        rows.append(("error on own classes", f"{wrong[own].mean():.1f} %" if bool(own.any()) else NONE))
    rows.append(("error on all classes", f"{wrong.mean():.1f} %"))
    if evaluation.auxiliary and evaluation.specialised and bool((~own).any()):
        left = evaluation.test.get("left")[:, m]
        rows.append(("auxiliary on other classes", f"{100 * left[~own].mean():.0f} %"))
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="facts")


def classes(evaluation: RunEvaluation, m: int) -> Markup:
    """What it knows."""
    if evaluation.owners is None:
        return tag("p", "The run has no record of its assignments.", class_="note")
    if not bool(evaluation.owners[:, m].any()):
        return tag("p", "Owns no class.", class_="note")
    if bool(evaluation.owners.all()):
        return tag("p", "Owns all classes, like every other member.", class_="note")
    mine = [evaluation.groups[at] for at in evaluation.owners[:, m].nonzero()[:, 0].tolist()]
    chips = [tag("li", shorten(name, 30, placeholder="…"), title=name) for name in mine[:CHIPS]]
    if len(mine) > CHIPS:
        chips.append(tag("li", f"and {len(mine) - CHIPS} more", class_="more"))
    return tag("ul", chips, class_="chips")


def examples(evaluation: RunEvaluation, m: int, mine: torch.Tensor) -> Markup:
    """The images of its own that it is most and least right about."""
    entropy = evaluation.test.get("cross_entropy")[mine, m]
    order = mine[entropy.argsort(stable=True)].tolist()
    best, worst = order[:SHOWN], order[::-1][: min(SHOWN, max(len(order) - SHOWN, 0))]
    shown = [strip(evaluation, m, best, "Lowest loss")]
    if worst:
        shown.append(strip(evaluation, m, worst, "Highest loss"))
    return tag("div", shown, class_="strips")


def strip(evaluation: RunEvaluation, m: int, chosen: Sequence[int], title: str) -> Markup:
    """Images in a row, each with what it shows and what the member said."""
    images = evaluation.images(chosen)
    said = evaluation.specialists.predict(images, batch_size=64).members[m]
    figures = []
    for row, at in enumerate(chosen):
        if evaluation.dense:
            label, error = said[row].argmax(0), 100 * float(evaluation.test.get("errors")[at, m])
            shown = overlay(images[row], label, auxiliary=len(evaluation.specialists.classes))
            words = (
                evaluation.groups[int(evaluation.examples.labels[at])] if evaluation.own is not None else "",
                f"{error:.1f} % wrong",
            )
        else:
            truth, top = int(evaluation.examples.target[at]), int(said[row].argmax())
            shown, name = to_rgb(images[row]), evaluation.examples.classes[truth]
            answer = (
                "auxiliary class" if top == len(evaluation.specialists.classes) else evaluation.specialists.classes[top]
            )
            words = (name, f"{100 * said[row, truth]:.0f} %") if top == truth else (name, f"predicted {answer}")
        caption = tag("figcaption", tag("b", words[0], title=words[0]), words[1])
        figures.append(tag("figure", thumbnail(shown, ", ".join(filter(None, words))), caption))
    return tag("div", tag("h5", title), tag("div", figures, class_="strip"))

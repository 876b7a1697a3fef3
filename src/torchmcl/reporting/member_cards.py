"""Members as cards: what each knows, its best and its worst examples."""

from collections.abc import Sequence
from textwrap import shorten

import torch

from torchmcl._utils.html import Markup, tag
from torchmcl.analysis import style
from torchmcl.analysis.figures.overlays import laid_over
from torchmcl.analysis.picture import picture
from torchmcl.analysis.run_evaluation import Look
from torchmcl.reporting.inline import thumbnail
from torchmcl.reporting.metric_descriptions import NONE

SHOWN, CHIPS = 4, 12


def cards(look: Look) -> Markup:
    """A card for each member."""
    return tag("div", [card(look, m) for m in range(look.members)], class_="cards")


def card(look: Look, m: int) -> Markup:
    """One member's."""
    own = torch.ones(len(look.examples), dtype=torch.bool) if look.own is None else look.own[:, m]
    head = tag(
        "h4", tag("span", class_="swatch", style=f"background: {style.line(m)['color']}"), f"Member {m + 1}", id=None
    )
    parts = [head, facts(look, m, own), classes(look, m)]
    if look.pictures and bool(own.any()):
        parts.append(examples(look, m, own.nonzero()[:, 0]))
    return tag("article", parts, class_="card member")


def facts(look: Look, m: int, own: torch.Tensor) -> Markup:
    """Its share and its errors."""
    wrong = 100 * look.test.gathered("errors")[:, m]
    rows = []
    if look.assigned is not None:
        rows.append(("share of the training", f"{100 * look.assigned[:, m].sum() / look.assigned.sum():.0f} %"))
    if look.specialised:
        rows.append(("error on its own", f"{wrong[own].mean():.1f} %" if bool(own.any()) else NONE))
    rows.append(("error on everything", f"{wrong.mean():.1f} %"))
    if look.auxiliary and look.specialised and bool((~own).any()):
        left = look.test.gathered("left")[:, m]
        rows.append(("“not mine” of others'", f"{100 * left[~own].mean():.0f} %"))
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="facts")


def classes(look: Look, m: int) -> Markup:
    """What it knows."""
    if look.owners is None:
        return tag("p", "What it took is not on record.", class_="note")
    if not bool(look.owners[:, m].any()):
        return tag("p", "Owns nothing: no class is this member's.", class_="note")
    if bool(look.owners.all()):
        return tag("p", "Learns everything, like all the others.", class_="note")
    mine = [look.groups[at] for at in look.owners[:, m].nonzero()[:, 0].tolist()]
    chips = [tag("li", shorten(name, 30, placeholder="…"), title=name) for name in mine[:CHIPS]]
    if len(mine) > CHIPS:
        chips.append(tag("li", f"and {len(mine) - CHIPS} more", class_="more"))
    return tag("ul", chips, class_="chips")


def examples(look: Look, m: int, mine: torch.Tensor) -> Markup:
    """The images of its own that it is most and least right about."""
    entropy = look.test.gathered("cross_entropy")[mine, m]
    order = mine[entropy.argsort(stable=True)].tolist()
    best, worst = order[:SHOWN], order[::-1][: min(SHOWN, max(len(order) - SHOWN, 0))]
    shown = [strip(look, m, best, "Best")]
    if worst:
        shown.append(strip(look, m, worst, "Worst"))
    return tag("div", shown, class_="strips")


def strip(look: Look, m: int, chosen: Sequence[int], title: str) -> Markup:
    """Images in a row, each with what it shows and what the member said."""
    images = look.images(chosen)
    said = look.specialists.predict(images, batch_size=64).members[m]
    figures = []
    for row, at in enumerate(chosen):
        if look.dense:
            label, error = said[row].argmax(0), 100 * float(look.test.gathered("errors")[at, m])
            shown = laid_over(images[row], label, auxiliary=len(look.specialists.classes))
            words = (look.groups[int(look.examples.labels[at])] if look.own is not None else "", f"{error:.1f} % wrong")
        else:
            truth, top = int(look.examples.target[at]), int(said[row].argmax())
            shown, name = picture(images[row]), look.examples.classes[truth]
            answer = "not mine" if top == len(look.specialists.classes) else look.specialists.classes[top]
            words = (name, f"{100 * said[row, truth]:.0f} %") if top == truth else (name, f"said {answer}")
        caption = tag("figcaption", tag("b", words[0], title=words[0]), words[1])
        figures.append(tag("figure", thumbnail(shown, ", ".join(filter(None, words))), caption))
    return tag("div", tag("h5", title), tag("div", figures, class_="strip"))

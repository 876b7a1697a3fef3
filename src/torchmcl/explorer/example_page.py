"""The page of one picture: what the ensemble says of it, whether it is accepted, and what each member says and sees."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from torchmcl._utils.html import Markup, join, tag
from torchmcl.analysis.figures.overlays import overlay
from torchmcl.analysis.images import to_rgb
from torchmcl.explorer.elements import bar, enlarge, grid, notice, percent, picture
from torchmcl.explorer.session import MAX_BYTES, ExampleAnswer, Session
from torchmcl.metrics import pixel_errors
from torchmcl.structures.output import per_example

LISTED = 10  # classes that are listed one by one
NOT_MINE = "not mine"


def page(session: Session, example: ExampleAnswer) -> Markup:
    """All of it."""
    parts = [verdict(session, example)]
    if example.map_error:
        parts.append(notice(f"No Grad-CAM. {example.map_error}"))
    parts += [tag("h3", "Outputs of the members"), legend(session), members(session, example)]
    return tag("div", *parts, class_="mcl-answer")


def verdict(session: Session, example: ExampleAnswer) -> Markup:
    """The picture, the answer, accepted or rejected, and why."""
    answer, specialists = example.answer, session.specialists
    accepted, confidence = bool(answer.accepted[0]), float(per_example(answer.confidence)[0])
    shown = overlay(example.image, answer.label[0]) if session.dense else to_rgb(example.image)
    badge = tag("span", "accepted" if accepted else "rejected", class_=f"mcl-badge {'good' if accepted else 'bad'}")
    said = [tag("div", heading(session, example), badge, class_="mcl-head")]
    said.append(tag("p", reason(session, accepted, confidence), class_="mcl-why"))
    said.append(gauge(confidence, specialists.model_config.rejection.threshold))
    if example.target is not None:
        said.append(tag("p", truth(session, example), class_="mcl-truth"))
    inside = [tag("figure", picture(shown, "the image in the size of the network's input")), tag("div", *said)]
    if not session.dense:
        own = probabilities(session, answer.probabilities[0], int(answer.label[0]), ranked=True)
        inside.append(tag("div", tag("h4", "Ensemble"), own, class_="mcl-together"))
    return tag(
        "section", *inside, class_=f"mcl-verdict {'good' if accepted else 'bad'}{' dense' if session.dense else ''}"
    )


def heading(session: Session, example: ExampleAnswer) -> Markup:
    """The label, or how much of the picture is what."""
    label, classes = example.answer.label[0], session.specialists.classes
    if not session.dense:
        return tag("h2", classes[int(label)])
    shares = [(name, float((label == c).float().mean())) for c, name in enumerate(classes)]
    return tag("h2", ", ".join(f"{percent(share)} {name}" for name, share in shares[1:] or shares))


def reason(session: Session, accepted: bool, confidence: float) -> Markup:
    """Why it is accepted or not, in a sentence."""
    threshold = session.specialists.model_config.rejection.threshold
    mean, sure = "The mean confidence of all pixels" if session.dense else "The confidence", percent(confidence)
    if not threshold:
        run = tag("code", f"torchmcl calibrate {session.name} --coverage 0.95")
        return join(f"{mean} is {sure}. The run is not calibrated and accepts every answer. Calibrate it: ", run)
    word = "reaches" if accepted else "is below"
    return join(f"{mean}, {sure}, {word} the threshold of {percent(threshold)}.")


def gauge(confidence: float, threshold: float) -> Markup:
    """The confidence as a bar, with a mark where acceptance begins."""
    mark = tag("b", style=f"left:{100 * threshold:.2f}%") if threshold else None
    return tag("div", tag("i", style=f"width:{100 * confidence:.2f}%"), mark, class_="mcl-gauge", aria_hidden="true")


def truth(session: Session, example: ExampleAnswer) -> Markup:
    """What the test set says, and how wrong the answer is."""
    assert example.target is not None
    if session.dense:
        wrong = pixel_errors(example.answer.probabilities[None], example.target[None])[0, 0]
        return join(f"{percent(float(wrong))} of the pixels are wrong.")
    right = int(example.answer.label[0]) == int(example.target)
    name = session.specialists.classes[int(example.target)]
    return join("The label in the test set is ", tag("b", name), f". The answer is {'correct' if right else 'wrong'}.")


def legend(session: Session) -> Markup:
    """What is to be seen, in a line."""
    told: list[str] = []
    if session.specialists.method.auxiliary:
        told.append(
            f"The auxiliary class, “{NOT_MINE}”, is a member's output for examples that it leaves to the others. The "
            "member with its lowest probability claims the example."
        )
    if session.dense:
        colours = [*session.specialists.classes[1:]] + ([NOT_MINE] if session.specialists.method.auxiliary else [])
        kinds = ["one", "two", "three", "four", "five"]
        for at, name in enumerate(colours):
            kind = "auxiliary" if name == NOT_MINE else kinds[at % 5]
            told.append(tag("span", tag("i", class_=kind), name, class_="mcl-key"))
    else:
        told.append("Colours mark the regions that speak for the ensemble's answer (Grad-CAM).")
    return tag("p", [(each, " ") for each in told], class_="mcl-legend")


def members(session: Session, example: ExampleAnswer) -> Markup:
    """A card a member, and for masks the truth beside them."""
    cards = [card(session, example, m) for m in range(session.members)]
    if session.dense and example.target is not None:
        head = tag("div", tag("h4", "Target"), class_="mcl-head")
        cards.insert(
            0, tag("section", head, picture(overlay(example.image, example.target), "target mask"), class_="mcl-card")
        )
    return grid(cards, "cards dense" if session.dense else "cards")


def card(session: Session, example: ExampleAnswer, member: int) -> Markup:
    """What one member says and sees; framed where it claims the picture."""
    said = example.answer.members[member, 0]
    claims = int(example.answer.member[0]) == member
    classes, auxiliary = len(session.specialists.classes), session.specialists.method.auxiliary
    badge = tag("span", "claims it", class_="mcl-badge own") if claims else None
    inside = [tag("div", tag("h4", f"Member {member + 1}"), badge, class_="mcl-head")]
    if session.dense:
        inside.append(
            picture(overlay(example.image, said.argmax(0), auxiliary=classes), f"mask of member {member + 1}")
        )
        if auxiliary:
            inside.append(bar(NOT_MINE, float(said[-1].mean()), "auxiliary"))
        if example.target is not None:
            wrong = pixel_errors(said[None, None, :classes], example.target[None])[0, 0]
            inside.append(bar("wrong pixels", float(wrong), "wrong"))
    else:
        if example.maps is not None:
            seen = heat(example.image, example.maps[member])
            inside.append(picture(seen, f"Grad-CAM of member {member + 1}", enlarged=False))
            if not bool(example.maps[member].any()):
                name = session.specialists.classes[int(example.answer.label[0])]
                inside.append(tag("p", f"No region of the image speaks for {name}."))
        inside.append(probabilities(session, said[:classes], int(example.answer.label[0])))
        if auxiliary:
            inside.append(bar(NOT_MINE, float(said[-1]), "auxiliary"))
    return tag("section", *inside, class_=f"mcl-card{' own' if claims else ''}", data_member=member + 1)


def probabilities(session: Session, values: Tensor, label: int, *, ranked: bool = False) -> Markup:
    """A bar a class, (C,): in their own order where they are few, else the likeliest, and the rest as one."""
    names = session.specialists.classes
    few = len(names) <= LISTED
    order = list(range(len(names))) if few and not ranked else values.argsort(descending=True).tolist()
    shown = order[: LISTED if few else 5]
    bars = [bar(names[c], float(values[c]), "label" if c == label else "") for c in shown]
    if len(shown) < len(names):
        bars.append(bar(f"{len(names) - len(shown)} others", float(values[order[len(shown) :]].sum()), "others"))
    return tag("div", *bars, class_="mcl-bars")


def heat(image: Tensor, found: Tensor) -> NDArray[np.uint8]:
    """An image (C, H, W) uint8 under a map (H, W) of 0 to 1 -> (H', W', 3), enlarged: grey where it does not look."""
    from matplotlib import colormaps

    plain = enlarge(to_rgb(image))
    fine = F.interpolate(found[None, None], size=plain.shape[:2], mode="bilinear", align_corners=False)[0, 0].numpy()
    colour = 255 * colormaps["inferno"](fine.clip(0, 1))[..., :3]
    grey = 0.3 * plain + 0.7 * plain.mean(-1, keepdims=True)  # colours are for the map
    mixed = grey + 0.75 * np.sqrt(fine.clip(0, 1))[..., None] * (colour - grey)
    return mixed.clip(0, 255).astype(np.uint8)


def drop() -> Markup:
    """Where a picture is sent from."""
    field = tag("input", type="file", accept="image/*", aria_label="Image file")
    told = tag("span", f"or choose a file, up to {MAX_BYTES // 1_000_000} MB", class_="mcl-said", role="status")
    return tag("label", field, tag("b", "Drop an image here"), told, class_="mcl-drop", data_limit=MAX_BYTES)


def empty() -> Markup:
    """What stands there before anything was asked."""
    return tag("div", tag("p", "Upload an image, or choose one of the test set."), class_="mcl-empty")


def thumbnails(session: Session, label: int | None, page: int, size: int = 18) -> Markup:
    """Pictures of the test set to choose from, of one label or of all, a page at a time."""
    if session.test is None:
        return notice(f"The run's test set is not available. {session.test_error}")
    names, labels = session.test.label_names, session.test.labels
    places = torch.arange(len(labels)) if label is None else (labels == label).nonzero()[:, 0]
    pages = max(1, -(-len(places) // size))
    page = min(max(page, 0), pages - 1)
    few = places[page * size : (page + 1) * size].tolist()
    buttons = [
        tag(
            "button",
            picture(image, ""),
            data_pick=at,
            title=names[int(labels[at])],
            aria_label=f"{names[int(labels[at])]}, image {at}",
        )
        for at, image in zip(few, session.images(few), strict=True)
    ]
    turn = [
        tag("button", arrow, data_page=to, aria_label=about, disabled=None if 0 <= to < pages else "")
        for arrow, to, about in (("←", page - 1, "previous page"), ("→", page + 1, "next page"))
    ]
    where = tag("span", f"{page + 1} of {pages}")
    return join(grid(buttons, "thumbs"), tag("div", turn[0], where, turn[1], class_="mcl-turn"))

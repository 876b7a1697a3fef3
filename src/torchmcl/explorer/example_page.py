"""The page for one image: the prediction of the ensemble, the outputs of the members, and the images to choose from."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from torchmcl.analysis.figures.overlays import overlay
from torchmcl.analysis.images import to_rgb
from torchmcl.errors import UsageError
from torchmcl.explorer import hypotheses_page
from torchmcl.explorer.elements import enlarge, image_url, notice, percent, render
from torchmcl.explorer.session import ExampleAnswer, Session
from torchmcl.metrics import pixel_errors
from torchmcl.structures.output import per_example
from torchmcl.structures.rejection import Rejection, claimed_examples

MAX_CLASSES = 10  # up to this number, all classes are listed
NOT_MINE = "not mine"
IMAGES_PER_CLASS = {12: 6, 40: 4, 10**9: 2}  # in the overview, by the largest number of classes
EMPTY = '<div class="mcl-empty"><p>The answer for the example that you choose is shown here.</p></div>'


def pages(sessions: Sequence[Session], predict: Callable[[Session], ExampleAnswer]) -> str:
    """Render the answer of each run for an example, side by side if there are several runs."""
    answers = [page(session, predict(session)) for session in sessions]
    return answers[0] if len(answers) == 1 else render("pair", parts=zip(sessions, answers, strict=True))


def page(session: Session, example: ExampleAnswer) -> str:
    """Render the answer for an example."""
    if session.targets:
        return hypotheses_page.page(session, example)
    answer, label = example.answer, example.answer.label[0]
    classes = len(session.specialists.classes)
    marked = label.masked_fill(~answer.claimed[0], classes)  # pixels that no member claims
    image = overlay(example.image, marked, auxiliary=classes) if session.dense else to_rgb(example.image)
    resized = not session.dense and example.original is not None and example.original.shape[:2] != image.shape[:2]
    return render(
        "answer",
        session=session,
        name=example.name,
        image=image_url(example.original if resized and example.original is not None else image),
        input=image_url(image) if resized else "",
        size=f"{example.image.shape[2]} x {example.image.shape[1]}",
        heading=_heading(session, label),
        calibrated=session.specialists.model_config.rejection != Rejection(),
        accepted=bool(answer.accepted[0]),
        claimed=bool(claimed_examples(answer.claimed)[0]),
        claim=None if answer.claim is None else float(per_example(answer.claim)[0]),
        unclaimed_pixels=1 - float(answer.claimed[0].float().mean()),
        member=int(answer.member[0]) + 1,
        confidence=float(per_example(answer.confidence)[0]),
        target=_target(session, example),
        ensemble=[] if session.dense else _bars(session, answer.probabilities[0], int(label), ranked=True),
        map_error=example.map_error,
        cards=[_card(session, example, m) for m in range(session.members)],
    )


def _heading(session: Session, label: Tensor) -> str:
    """Return the name of the label or, for a mask, the area of each class except the first."""
    classes = session.specialists.classes
    if not session.dense:
        return classes[int(label)]
    areas = [f"{percent(float((label == c).float().mean()))} {name}" for c, name in enumerate(classes)]
    return ", ".join(areas[1:] or areas)


def _target(session: Session, example: ExampleAnswer) -> dict[str, Any] | None:
    """Return the target and the error of the answer, or None if the target is unknown."""
    if example.target is None:
        return None
    if session.dense:
        wrong = float(pixel_errors(example.answer.probabilities[None], example.target[None])[0, 0])
        return {"wrong": wrong, "image": image_url(overlay(example.image, example.target))}
    wrong = int(example.answer.label[0]) != int(example.target)
    return {"wrong": wrong, "name": session.specialists.classes[int(example.target)]}


def _card(session: Session, example: ExampleAnswer, m: int) -> dict[str, Any]:
    """Return the values of one member's card."""
    output, classes = example.answer.members[m, 0], len(session.specialists.classes)
    claims = int(example.answer.member[0]) == m and bool(claimed_examples(example.answer.claimed)[0])
    card: dict[str, Any] = {"claims": claims, "image": None, "empty_map": False}
    if session.dense:
        card["image"] = image_url(overlay(example.image, output.argmax(0), auxiliary=classes))
    else:
        card["classes"] = _bars(session, output[:classes], int(example.answer.label[0]))
        if example.maps is not None:
            card["image"] = image_url(heat_map(example.image, example.maps[m]))
            card["empty_map"] = not bool(example.maps[m].any())
    card["others"] = []
    if session.specialists.method.auxiliary:
        card["others"].append({"name": NOT_MINE, "part": float(output[-1].mean()), "kind": "auxiliary"})
    if session.dense and example.target is not None:
        wrong = float(pixel_errors(output[None, None, :classes], example.target[None])[0, 0])
        card["others"].append({"name": "wrong pixels", "part": wrong, "kind": "wrong"})
    return card


def _bars(session: Session, values: Tensor, label: int, *, ranked: bool = False) -> list[dict[str, Any]]:
    """Return one bar per class (C,); with more than 10 classes, only the five most probable have their own bar."""
    names = session.specialists.classes
    short = len(names) <= MAX_CLASSES
    order = list(range(len(names))) if short and not ranked else values.argsort(descending=True).tolist()
    shown, others = order[: MAX_CLASSES if short else 5], order[MAX_CLASSES if short else 5 :]
    bars = [{"name": names[c], "part": float(values[c]), "kind": "label" if c == label else ""} for c in shown]
    if others:
        bars.append({"name": f"{len(others)} others", "part": float(values[others].sum()), "kind": "others"})
    return bars


def heat_map(image: Tensor, weights: Tensor) -> NDArray[np.uint8]:
    """Draw a map (H, W) with values from 0 to 1 over an image, uint8 (C, H, W) -> enlarged image (H', W', 3)."""
    from matplotlib import colormaps

    rgb = enlarge(to_rgb(image))
    fine = F.interpolate(weights[None, None], size=rgb.shape[:2], mode="bilinear", align_corners=False)[0, 0].numpy()
    colour = 255 * colormaps["inferno"](fine.clip(0, 1))[..., :3]
    grey = 0.3 * rgb + 0.7 * rgb.mean(-1, keepdims=True)  # desaturated, so that the map stands out
    blended = grey + 0.75 * np.sqrt(fine.clip(0, 1))[..., None] * (colour - grey)
    return blended.clip(0, 255).astype(np.uint8)


def thumbnails(session: Session, label: int | None = None, page: int = 0, size: int = 36) -> str:
    """Render one page of the test images with the given label, or the first images of every label if it is None."""
    if session.test is None:
        return notice(f"The run's test set is not available. {session.test_error}")
    names, labels = session.test.label_names, session.test.labels
    if label is not None and not 0 <= label < len(names):
        raise UsageError("This class does not exist. Reload the page.")
    each = next(count for limit, count in IMAGES_PER_CLASS.items() if len(names) <= limit)
    groups, pages = [], 1
    for c in range(len(names)) if label is None else [label]:
        indices = (labels == c).nonzero()[:, 0]
        count = len(indices)
        if label is None:
            indices = indices[:each]
        else:
            pages = max(1, -(-count // size))
            page = min(max(page, 0), pages - 1)
            indices = indices[page * size : (page + 1) * size]
        images = session.images(indices.tolist()) if len(indices) else ()
        pictures = [
            {"index": index, "src": image_url(image)} for index, image in zip(indices.tolist(), images, strict=True)
        ]
        if count:
            groups.append({"label": c, "name": names[c], "count": count, "images": pictures})
    return render("thumbnails", groups=groups, overview=label is None, page=page, pages=pages)

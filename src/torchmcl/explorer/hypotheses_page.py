"""The page for one example of a run that predicts numbers: its hypotheses, its target, and the input to edit."""

from itertools import count
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from torchmcl.analysis import style
from torchmcl.analysis.figures.hypotheses_over_input import target_range
from torchmcl.analysis.figures.target_density import target_density
from torchmcl.analysis.figures.voronoi_cells import draw_cells
from torchmcl.analysis.inline import svg
from torchmcl.explorer.elements import image_url, notice, render
from torchmcl.explorer.session import ExampleAnswer, Session
from torchmcl.structures.values import valid_rows

MAX_VALUES = 12  # of a target, in the table
MAX_INPUTS = 200  # input values that can be edited
DRAWINGS = count()  # numbers that make the ids of all drawings on a page different


def page(session: Session, example: ExampleAnswer) -> str:
    """Render the answer for an example."""
    answer, target = example.answer, _targets(session, example)
    scores, scale = answer.scores[:, 0], answer.task.scale
    away = answer.hypotheses - target  # (M, T, D)
    distance = (away if session.targets == 1 or scale is None else away / torch.tensor(scale)).norm(dim=2)
    closest = distance.argmin(0).bincount(minlength=session.members)
    order = scores.argsort(descending=True, stable=True).tolist()
    equal = bool(torch.allclose(scores, scores[:1])) and session.members > 1
    picture = example.image if example.original is None else example.original
    return render(
        "hypotheses",
        name=example.name,
        image=image_url(picture) if session.images_shown else "",
        drawing=drawing(session, example, target),
        equal=equal,
        likely=order[0] + 1,
        score=float(scores[order[0]]),
        heading=_joined(answer.mean[0] if equal else answer.most_probable[0], 3),
        mean=answer.mean[0, :MAX_VALUES].tolist(),
        mean_text=_joined(answer.mean[0], 3),
        target=target[0, :MAX_VALUES].tolist() if len(target) == 1 else [],
        target_text=_joined(target[0], 3) if len(target) == 1 else "",
        count=len(target),
        nearest=int(closest.argmax()) + 1,
        D=session.targets,
        standardised=scale is not None,
        rows=[_row(answer.hypotheses[m, 0], m, float(scores[m]), distance[m], int(closest[m])) for m in order],
    )


def _row(values: Tensor, m: int, score: float, distance: Tensor, closest: int) -> dict[str, Any]:
    """Return a hypothesis (D,) for the table, with its distances to the targets (T,)."""
    near = {"distance": float(distance) if len(distance) == 1 else None, "closest": closest}
    colour = style.line(m)["color"]
    return {"number": m + 1, "colour": colour, "score": score, "values": values[:MAX_VALUES].tolist(), **near}


def _joined(values: Tensor, most: int) -> str:
    """Format the first values (D,).

    >>> _joined(torch.tensor([1.0, 2.5, 3.0]), 2)
    '1, 2.5, …'
    """
    return ", ".join([f"{value:.5g}" for value in values[:most].tolist()] + ["…"] * (len(values) > most))


def _targets(session: Session, example: ExampleAnswer) -> Tensor:
    """Return the targets of an example without padding, (T, D); T = 0 if they are unknown."""
    if example.target is None:
        return torch.empty(0, session.targets)
    several = example.target.reshape(-1, session.targets)
    return several[valid_rows(several)]


def drawing(session: Session, example: ExampleAnswer, target: Tensor) -> Markup | str:
    """Draw the answer over one or two target values; return "" if there are more.

    The axes show the range of the test targets; hypotheses that are far from all targets lie outside of it.
    """
    answer, known = example.answer, session.target_limits
    if session.targets > 2:
        return ""
    shown = torch.cat([known if len(known) else answer.hypotheses[:, 0], answer.mean, answer.most_probable, target])
    limits = target_range(shown)
    if session.targets == 1:
        figure = target_density(answer, target, limits)
    else:
        figure = style.new(4.0, 3.4)
        axes = figure.subplots()
        draw_cells(axes, answer.hypotheses[:, 0], answer.scores[:, 0], target, limits, answer.task.scale)
        axes.set(ylabel="target value 2")
    return svg(figure, "The hypotheses over the target", key=f"d{next(DRAWINGS)}")


def number(session: Session) -> str:
    """Render the fields for the number of the test example."""
    if session.test is None:
        return notice(f"The run's test set is not available. {session.test_error}")
    return render("number", count=len(session.test))


def inputs(session: Session, index: int) -> str:
    """Render the input values of a test example, which can be edited; "" for images."""
    if session.images_shown:
        return ""
    shape = session.specialists.model_config.shape
    if not session.editable or shape[0] > MAX_INPUTS:
        return notice(f"Inputs of shape {shape} are not shown. Predict your own with: torchmcl predict RUN FILE")
    values = torch.zeros(shape) if session.test is None else session.images([index])[0]
    return render("inputs", values=values.numpy().astype(str).tolist(), index=None if session.test is None else index)

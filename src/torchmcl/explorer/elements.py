"""Small pieces of HTML; whatever was not written here is escaped."""

from base64 import b64encode
from collections.abc import Iterable
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchmcl._utils.html import Markup, tag
from torchmcl.analysis.images import to_rgb

SHOWN = 160  # pixels that the shorter side of an enlarged picture has at least


def grid(parts: Iterable[Markup], kind: str) -> Markup:
    """Things beside each other, as many as fit."""
    return tag("div", *parts, class_=f"mcl-grid {kind}")


def notice(text: str, kind: str = "note") -> Markup:
    """A message in a box: a note, or a problem that is read out at once."""
    return tag("div", text, class_=f"mcl-notice {kind}", role="alert" if kind == "problem" else "status")


def bar(name: str, part: float, kind: str = "") -> Markup:
    """A name, a bar of 0 to 1, and the number in percent."""
    fill = tag("i", style=f"width:{100 * part:.2f}%")
    return tag(
        "div",
        tag("span", name, class_="name", title=name),
        tag("span", fill, class_="track"),
        tag("span", percent(part), class_="number"),
        class_=f"mcl-bar {kind}".strip(),
    )


def percent(part: float) -> str:
    """A part of 1 for people; almost all is not all, almost nothing is not nothing.

    >>> percent(0.5), percent(0.9999), percent(0.0001), percent(1), percent(0.973)
    ('50 %', '>99.9 %', '<0.1 %', '100 %', '97.3 %')
    """
    if 0.999 < part < 1:
        return ">99.9 %"
    if 0 < part < 0.001:
        return "<0.1 %"
    return f"{100 * part:.1f}".removesuffix(".0") + " %"


def picture(image: Tensor | NDArray[np.uint8], about: str, *, enlarged: bool = True) -> Markup:
    """An image (C, H, W), or (H, W, 3), inside the page itself: no file of the host has an address."""
    values = to_rgb(image) if isinstance(image, Tensor) else image
    return tag("img", src=address(enlarge(values) if enlarged else values), alt=about, loading="lazy")


def enlarge(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels (H, W, 3) as squares, where they are too few to be seen."""
    times = -(-SHOWN // min(values.shape[:2]))
    return values if times < 2 else values.repeat(times, 0).repeat(times, 1)


def address(values: NDArray[np.uint8]) -> str:
    """Pixels (H, W, 3) as a data: address."""
    from PIL import Image

    kept = BytesIO()
    exact = max(values.shape[:2]) <= SHOWN
    Image.fromarray(np.ascontiguousarray(values)).save(kept, "WEBP", lossless=exact, quality=70 if exact else 88)
    return f"data:image/webp;base64,{b64encode(kept.getvalue()).decode()}"

"""Rendering of templates, numbers and images for the pages."""

from base64 import b64encode
from io import BytesIO
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchmcl._utils.templates import environment
from torchmcl.analysis.images import to_rgb

MIN_SIDE = 160  # minimum length of the shorter side of an enlarged image in pixels
TEMPLATES = environment("torchmcl.explorer")


def render(template: str, **values: Any) -> str:
    """Render a template of this package."""
    return TEMPLATES.get_template(f"{template}.html").render(values)


def notice(text: str, kind: str = "note") -> str:
    """Render a message in a box; screen readers announce messages of the kind "problem" at once."""
    return render("notice", text=text, kind=kind)


def percent(fraction: float) -> str:
    """Format a fraction in percent; only exact values are shown as 0 % or 100 %.

    >>> percent(0.5), percent(0.9999), percent(0.0001), percent(1), percent(0.973)
    ('50 %', '>99.9 %', '<0.1 %', '100 %', '97.3 %')
    """
    if 0.999 < fraction < 1:
        return ">99.9 %"
    if 0 < fraction < 0.001:
        return "<0.1 %"
    return f"{100 * fraction:.1f}".removesuffix(".0") + " %"


TEMPLATES.filters["percent"] = percent
TEMPLATES.filters["quote"] = quote


def enlarge(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Enlarge a small image (H, W, 3) by repeating its pixels."""
    times = -(-MIN_SIDE // min(values.shape[:2]))
    return values if times < 2 else values.repeat(times, 0).repeat(times, 1)


def image_url(image: Tensor | NDArray[np.uint8]) -> str:
    """Return an image (C, H, W), or (H, W, 3) if it is an array, as a data URL, enlarged if it is small."""
    from PIL import Image

    values = enlarge(to_rgb(image) if isinstance(image, Tensor) else image)
    buffer = BytesIO()
    lossless = max(values.shape[:2]) <= MIN_SIDE
    Image.fromarray(np.ascontiguousarray(values)).save(
        buffer, "WEBP", lossless=lossless, quality=70 if lossless else 88
    )
    return f"data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}"

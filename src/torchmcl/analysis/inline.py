"""Figures and images that are embedded in a page."""

import base64
import io
import re
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_SIDE = 160  # maximum width and height of a thumbnail in pixels


class Thumbnail(NamedTuple):
    """A small image as a data URL, its size, and whether to enlarge it without smoothing."""

    src: str
    width: int
    height: int
    pixelated: bool


def svg(figure: "Figure", label: str, *, key: str) -> Markup:
    """Return a figure as an SVG element in the colours and the font of the page; `key` makes its ids unique."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser uses its own fonts
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'style="[^"]*"', _page_colours, text)
    width = float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]
    box = re.search(r'viewBox="[^"]*"', text)[0]  # type: ignore[index]
    content = _unique_ids(text[text.index(">") + 1 :], key).strip()
    return Markup(f'<svg {box} role="img" style="--width: {width:.0f}px"><title>{escape(label)}</title>{content}')


def thumbnail(image: NDArray[np.uint8]) -> Thumbnail:
    """Return an image (H, W, 3) as a thumbnail of at most 160 x 160 pixels."""
    from PIL import Image

    shown, buffer = Image.fromarray(image), io.BytesIO()
    if max(shown.size) > MAX_SIDE:
        shown.thumbnail((MAX_SIDE, MAX_SIDE))
    small = max(shown.size) <= 64
    if small:
        shown.save(buffer, format="png", optimize=True)
    else:
        shown.save(buffer, format="jpeg", quality=82)
    data = base64.b64encode(buffer.getvalue()).decode()
    return Thumbnail(f"data:image/{'png' if small else 'jpeg'};base64,{data}", *shown.size, small)


def _page_colours(style: re.Match[str]) -> str:
    """Replace matplotlib's black and white with the colours of the page."""
    return style[0].replace("#000000", "currentColor").replace("#ffffff", "var(--card)")


def _unique_ids(text: str, key: str) -> str:
    """Remove ids that nothing refers to and prefix the others with `key`."""
    used = {name for pair in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text) for name in pair}
    text = re.sub(r' id="([^"]+)"', lambda match: f' id="{key}-{match[1]}"' if match[1] in used else "", text)
    return re.sub(r'url\(#|href="#', lambda match: f"{match[0]}{key}-", text)

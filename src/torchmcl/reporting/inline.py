"""Pictures that are part of the page: figures as SVG in the page's own ink, images as data."""

import base64
import io
import re
import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchmcl._utils.html import Markup, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, PAPER = "#000000", "#ffffff"  # as matplotlib writes them, and the only things that are so
LARGEST = 160  # pixels of a thumbnail


def svg(figure: "Figure", about: str, *, key: str) -> Markup:
    """A figure as an element that takes ink, paper and font from the page; `key` keeps its names apart from others'."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has its own fonts
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'style="[^"]*"', _in_page_colours, text)
    width = float(re.search(r'width="([\d.]+)pt"', text)[1])  # type: ignore[index]
    box = re.search(r'viewBox="[^"]*"', text)[0]  # type: ignore[index]
    inside = _own_names(text[text.index(">") + 1 :], key)
    label = tag("title", about)
    return Markup(f'<svg {box} role="img" style="--width: {width:.0f}px">{label}{inside}'.strip())


def thumbnail(image: NDArray[np.uint8], about: str) -> Markup:
    """An image (H, W, 3) as an element that holds it: small ones as they are, larger ones reduced."""
    from PIL import Image

    shown, buffer = Image.fromarray(image), io.BytesIO()
    if max(shown.size) > LARGEST:
        shown.thumbnail((LARGEST, LARGEST))
    kind = "png" if max(shown.size) <= 64 else "jpeg"
    shown.save(buffer, format=kind, **({"optimize": True} if kind == "png" else {"quality": 82}))
    data = base64.b64encode(buffer.getvalue()).decode()
    return tag(
        "img",
        src=f"data:image/{kind};base64,{data}",
        alt=about,
        width=shown.width,
        height=shown.height,
        class_="small" if kind == "png" else None,
    )


def _in_page_colours(style: re.Match[str]) -> str:
    return style[0].replace(INK, "currentColor").replace(PAPER, "var(--card)")


def _own_names(text: str, key: str) -> str:
    """Only names that something refers to stay, and those are this figure's alone."""
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text))
    names = {name for pair in used for name in pair if name}
    text = re.sub(r' id="([^"]+)"', lambda found: f' id="{key}-{found[1]}"' if found[1] in names else "", text)
    return re.sub(r'url\(#|href="#', lambda found: f"{found[0]}{key}-", text)

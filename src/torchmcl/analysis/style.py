"""How figures look: fit for a paper, told apart by the colour-blind and in grey.

Ink is black and paper white, nothing else is: a page that is dark at night may exchange them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from torchmcl._utils import atomic
from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008, but for yellow, which paper hides, and black, which is ink.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: Sequence[Any] = ("-", "--", (0, (1, 1.2)), "-.", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (3, 3)), (0, (8, 2, 2, 2)))
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "oooo")
GREY = "#8a8f98"
OWNER = PALETTE[1]  # a frame round what is a member's own
DARK, BRIGHT = "#101010", "#fefefe"  # text on a colour, the same by day and by night
KINDS = ("pdf", "png", "svg")


def new(width: float = 4.6, height: float = 3.0) -> "Figure":
    """An empty figure, in inches; a column of a paper is 3.3 wide, a page 7."""
    try:
        from matplotlib.figure import Figure
    except ImportError as absent:
        raise UsageError("Expected matplotlib for figures, found none. Try: pip install 'torchmcl[plots]'") from absent
    return Figure(figsize=(width, height), layout="constrained")


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of the line of a member, or of a run.

    >>> line(0)["color"], line(6)["color"], line(1)["linestyle"]
    ('#0072B2', '#0072B2', '--')
    """
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.7}


def bar(number: int) -> dict[str, Any]:
    """Colour and hatch of the bars of a member, or of a run."""
    return {
        "facecolor": PALETTE[number % len(PALETTE)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.4,
    }


def tidy(axes: "Axes", *, grid: str = "") -> None:
    """No frame, small ticks, and faint lines along "x", "y" or "both" where they help."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=3)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.title.set_fontsize(9.5)
    if grid:
        axes.grid(axis=grid, color=GREY, alpha=0.25, linewidth=0.6)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


def legend(axes: "Axes", **options: Any) -> None:
    """Without a frame, and small."""
    axes.legend(**{"frameon": False, "fontsize": 8, "handlelength": 2.4, **options})


def named(text: str, width: int = 24) -> str:
    """A name of somebody else's for a figure: no mathematics, no control characters, not too long.

    >>> named("a $cat$"), named("tab\\tand bell\\a"), named("one two three four five six")
    ('a \\\\$cat\\\\$', 'tab and bell', 'one two three four five…')
    """
    clean = shorten(re.sub(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+", " ", str(text)), width, placeholder="…")
    clean = clean if clean != "…" else f"{str(text).strip()[: width - 1]}…"  # one long word
    return clean.replace("$", r"\$")


def save(figure: "Figure", path: str | Path) -> Path:
    """Write a figure, whole or not at all, as the ending says: .pdf and .svg are vectors, .png has 200 dots an inch."""
    import matplotlib

    path = Path(path)
    kind = path.suffix[1:].lower()
    if kind not in KINDS:
        raise UsageError(f"Expected a figure to end in .{', .'.join(KINDS)}, got {path.name}.")
    atomic.make_folder(path.parent)
    # Type 42 is what publishers ask for; without dates, the same figure gives the same bytes.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "torchmcl"}):
        dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        atomic.write(path, lambda file: figure.savefig(file, format=kind, dpi=200, metadata=dated))
    return path

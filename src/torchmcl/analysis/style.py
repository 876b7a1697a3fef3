"""The style of figures: suitable for print, for greyscale and for colour-blind readers.

Only text and lines are black and only backgrounds are white, so that a page with a dark theme can replace both colours.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from torchmcl._utils import atomic
from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# The palette of Okabe & Ito 2008 without yellow, which is hard to see on white, and black, which is used for text.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
DASHES: Sequence[Any] = ("-", "--", (0, (1, 1.2)), "-.", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (3, 3)), (0, (8, 2, 2, 2)))
HATCHES = ("", "////", "..", "\\\\\\\\", "xxx", "---", "oo")  # sparse, because every mark is a path in an SVG
GREY = "#8a8f98"
OWNER = PALETTE[1]  # the colour of the frames around groups that a member owns
DARK, BRIGHT = "#101010", "#fefefe"  # the colours of text on a coloured background, in both themes
HEAT = "#1565b0"  # the colour of 100 % in a matrix
THEMES = {"#ffffff": "#000000", "#1a1e26": "#e7eaf0"}  # the colours of a page and of its text: light and dark
FORMATS = ("pdf", "png", "svg")


def new(width: float = 4.6, height: float = 3.0) -> "Figure":
    """Return an empty figure of the given size in inches, such as a width of 3.3 for a column or 7 for a page."""
    try:
        from matplotlib import figure
    except ImportError as error:
        raise UsageError("Figures need matplotlib. Install it with: pip install 'torchmcl[plots]'") from error
    return figure.Figure(figsize=(width, height), layout="constrained")


def line(number: int) -> dict[str, Any]:
    """Return the line style of a member or run.

    >>> line(0)["color"], line(6)["color"], line(1)["linestyle"]
    ('#0072B2', '#0072B2', '--')
    """
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.7}


def bar(number: int) -> dict[str, Any]:
    """Return the bar style of a member or run."""
    colour, hatch = PALETTE[number % len(PALETTE)], HATCHES[number % len(HATCHES)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}


def heat_map() -> "Colormap":
    """Return a colour map from transparent to blue, so that large values stand out in a light and in a dark theme."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    return LinearSegmentedColormap.from_list("heat", [to_rgba(HEAT, 0.15), to_rgba(HEAT, 1)])


def text_on_heat(percent: float) -> str:
    """Return the colour of text on a cell of a `heat_map` from 0 to 100."""
    return BRIGHT if percent > 75 else "black"


def text_on(colour: Sequence[float]) -> str:
    """Return the colour of text that is legible in both themes on a colour with an opacity (red, green, blue, alpha).

    >>> text_on((0, 0, 0.5, 1)), text_on((1, 1, 0.5, 1)), text_on((0, 0, 0.5, 0.3))
    ('#fefefe', '#101010', 'black')
    """
    from matplotlib.colors import to_rgb

    def contrast(text: str) -> float:
        found = []
        for page, ink in THEMES.items():
            cell = [colour[3] * one + (1 - colour[3]) * other for one, other in zip(colour, to_rgb(page), strict=False)]
            dark, bright = sorted(map(_luminance, (cell, to_rgb(ink if text == "black" else text))))
            found.append((bright + 0.05) / (dark + 0.05))
        return min(found)

    return BRIGHT if contrast(BRIGHT) >= 3 else max("black", DARK, key=contrast)


def _luminance(colour: Sequence[float]) -> float:
    return sum(part * one**2.2 for part, one in zip((0.2126, 0.7152, 0.0722), colour, strict=True))


def tidy(axes: "Axes", *, grid: str = "") -> None:
    """Remove the top and right spines, set font sizes, and optionally add a grid ("x", "y" or "both")."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, length=3)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.title.set_fontsize(9.5)
    if grid:
        axes.grid(axis=grid, color=GREY, alpha=0.25, linewidth=0.6)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


def legend(axes: "Axes", **options: Any) -> None:
    """Add a small legend without a frame above all axes of the figure, where it covers no curves."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(3, 60 // (max(map(len, labels), default=1) + 8)))
    options = {"frameon": False, "fontsize": 8, "handlelength": 2.4, "ncols": columns, **options}
    axes.get_figure(root=True).legend(handles, labels, loc="outside upper center", **options)  # type: ignore[union-attr]


def share_y(figures: Sequence["Figure"]) -> None:
    """Give the axes at the same place in several figures the same limits on the y-axis."""
    for together in zip(*(figure.axes for figure in figures), strict=False):
        limits = [axes.get_ylim() for axes in together]
        for axes in together:
            axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def mixed_scale(axes: "Axes", typical: Sequence[float], highest: float) -> float | None:
    """Use a y-axis that is linear at first and logarithmic above, if a few values would flatten all other curves.

    Args:
        axes: the axes, with a y-axis that starts at 0
        typical: a typical value of each curve
        highest: the largest value of all curves

    Returns:
        Where the logarithmic part begins, or None if the axis is linear: at twice the lower median of `typical`, if
        `highest` is more than three times as large.

    >>> axes = new().subplots()
    >>> mixed_scale(axes, [1.0, 2.0, 3.0], 5.0), mixed_scale(axes, [1.0, 2.0, 40.0], 60.0)
    (None, 4.0)
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    known = sorted(value for value in typical if value == value)
    limit = 2 * known[(len(known) - 1) // 2] if known else 0.0
    if limit <= 0 or highest <= 3 * limit:
        return None
    power = 10.0 ** math.floor(math.log10(limit))
    limit = next(power * factor for factor in (1, 2, 4, 8, 10) if power * factor >= limit)
    # Two thirds of the height are linear.
    axes.set_yscale("symlog", linthresh=limit, linscale=2 * math.log10(highest / limit))
    above = [tick for tick in (limit * 2**i for i in range(1, 12)) if tick < 1.05 * highest]
    axes.yaxis.set_major_locator(FixedLocator([limit * i / 4 for i in range(5)] + above))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.axhline(limit, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "bottom", "rotation": 90}
    axes.annotate("logarithmic", (1, limit), (1, 0), fontsize=6.5, color=GREY, **place)  # type: ignore[arg-type]
    axes.set_ylim(0, 1.1 * highest)
    return limit


def label(text: str, width: int = 24) -> str:
    """Make a name safe for a figure, without math mode or control characters, and with at most `width` characters.

    >>> label("a $cat$"), label("tab\\tand bell\\a"), label("one two three four five six")
    ('a \\\\$cat\\\\$', 'tab and bell', 'one two three four five…')
    """
    clean = shorten(re.sub(r"[\x00-\x1f\x7f-\x9f\ufffe\uffff]+", " ", str(text)), width, placeholder="…")
    clean = clean if clean != "…" else f"{str(text).strip()[: width - 1]}…"  # a single long word
    return clean.replace("$", r"\$")


def save(figure: "Figure", path: str | Path) -> Path:
    """Write a figure atomically in the format given by the extension: .pdf, .svg, or .png with 200 dots per inch."""
    import matplotlib

    path = Path(path)
    kind = path.suffix[1:].lower()
    if kind not in FORMATS:
        raise UsageError(f"Cannot write a figure to {path.name}. Use a name that ends in .{', .'.join(FORMATS)}.")
    atomic.make_folder(path.parent)
    # Publishers require Type 42 fonts. Without a date, equal figures produce equal files.
    with matplotlib.rc_context({"pdf.fonttype": 42, "svg.hashsalt": "torchmcl"}):
        metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
        atomic.write(path, lambda file: figure.savefig(file, format=kind, dpi=200, metadata=metadata))
    return path

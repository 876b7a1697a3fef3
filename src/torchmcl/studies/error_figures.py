"""Figures that several studies share: errors against an option such as K, and errors against the cost of training."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmcl.analysis import style
from torchmcl.studies.statistics import mean_std
from torchmcl.studies.store import Result
from torchmcl.studies.study import values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"oracle_error": "oracle error", "top1_error": "top-1 error"}
Point = tuple[float, Sequence[Result]]  # the value of an option, and the results of all seeds
BESIDE: dict[str, Any] = {"xytext": (5, 0), "textcoords": "offset points"}
OUTLIER = {"top1_error": 2.0}  # errors above this multiple of the smallest one are drawn at the upper edge


def errors_against(panels: Mapping[str, Mapping[str, Sequence[Point]]], label: str) -> "Figure | None":
    """Plot oracle and top-1 errors against an option, with the standard deviation over seeds.

    Args:
        panels: for the title of each pair of panels, such as a data set, the points of each line by its name
        label: name of the option

    Returns:
        The figure, or None if there are no results.
    """
    panels = {
        title: {name: [point for point in line if point[1]] for name, line in lines.items()}
        for title, lines in panels.items()
    }
    if not any(line for lines in panels.values() for line in lines.values()):
        return None
    figure = style.new(7, 0.4 + 2.4 * len(panels))
    grid = figure.subplots(len(panels), len(PANELS), squeeze=False)
    for row, (title, lines) in zip(grid, panels.items(), strict=True):
        for axes, (metric, name) in zip(row, PANELS.items(), strict=True):
            _lines(axes, lines, metric)
            axes.set(title=f"{title}: {name}" if title else name, xlabel=label, ylabel="percent")
            style.tidy(axes, grid="y")
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _lines(axes: "Axes", lines: Mapping[str, Sequence[Point]], metric: str) -> None:
    """Draw one line per method; errors above the limit are at the upper edge, with their value."""
    bars = {
        method: [(option, *mean_std(values(own, metric))) for option, own in line] for method, line in lines.items()
    }
    every = [bar for line in bars.values() for bar in line]
    limit = _limit([mean for _, mean, _ in every], metric)
    ends = [mean + sign * (std or 0.0) for _, mean, std in every if mean <= limit for sign in (-1, 1)]
    low, high = _range(ends, max(ends, default=limit))
    for number, (method, line) in enumerate(bars.items()):
        drawn = [(option, mean, std or 0.0) if mean <= limit else (option, high, 0.0) for option, mean, std in line]
        across, heights, spreads = zip(*drawn, strict=True) if drawn else ((), (), ())
        axes.errorbar(across, heights, yerr=spreads, marker="o", capsize=2.5, label=method, **style.line(number))
        for option, mean, _ in line:
            if mean > limit:
                axes.annotate(f"{mean:.0f}", (option, high), (4, -9), textcoords="offset points", fontsize=7)
    axes.set_xticks(sorted({option for option, _, _ in every}))
    axes.set_ylim(low, high)


def errors_against_cost(rows: Mapping[str, Sequence[Result]]) -> "Figure | None":
    """Plot the oracle and top-1 error of each row against the cost of its training step, in units of one network.

    Returns:
        The figure, or None if no result has a cost.
    """
    rows = {name: own for name, own in rows.items() if own and "cost" in own[0]["records"]}
    if not rows:
        return None
    figure = style.new(7, 3.6)
    for axes, (metric, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        points = {name: (own[0]["records"]["cost"], mean_std(values(own, metric))[0]) for name, own in rows.items()}
        _scatter(axes, points, _limit([error for _, error in points.values()], metric))
        axes.set(title=title, xlabel="cost of a training step (networks)", ylabel="percent")
        style.tidy(axes, grid="y")
    return figure


def _scatter(axes: "Axes", points: Mapping[str, tuple[float, float]], limit: float) -> None:
    """Draw points; errors above the limit are at the upper edge.

    The label of a point is next to it if no other point has the same cost, rounded, and in a column on the right side
    otherwise.
    """
    low, high = _range([error for _, error in points.values()], limit)
    drawn = {name: (cost, min(error, high)) for name, (cost, error) in points.items()}
    right = max(cost for cost, _ in points.values())
    at_cost = Counter(round(cost) for cost, _ in points.values())
    names = sorted((name for name in points if at_cost[round(points[name][0])] > 1), key=lambda name: points[name][1])
    heights = _apart([drawn[name][1] for name in names], low, high, gap=(high - low) / 17)
    column = dict(zip(names, heights, strict=True))
    line = {"arrowstyle": "-", "color": style.GREY, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 3}
    for name, (_, error) in points.items():
        axes.plot(*drawn[name], "o" if error <= limit else "^", markersize=5, color=_colour(name))
        text = name if error <= limit else f"{name} ({error:.0f})"
        place = {"xytext": (1.35 * right, column[name]), "arrowprops": line} if name in column else BESIDE
        axes.annotate(text, drawn[name], fontsize=7.5, va="center", **place)
    axes.set(xlim=(0, 1.95 * right), ylim=(low, high))
    axes.set_xticks(sorted({1, *(round(cost) for cost, _ in points.values())}))


def _apart(heights: Sequence[float], low: float, high: float, *, gap: float) -> list[float]:
    """Move sorted heights apart so that they differ by at least `gap`, and stay in the range if it is large enough.

    >>> _apart([1.0, 1.0, 9.5, 10.0], 0.0, 10.0, gap=1.0)
    [1.0, 2.0, 9.0, 10.0]
    """
    moved, before = list[float](), low - gap
    for height in heights:
        before = max(height, before + gap)
        moved.append(before)
    above = high + gap
    for at in reversed(range(len(moved))):
        above = moved[at] = min(moved[at], above - gap)
    return moved


def _colour(name: str) -> str:
    """Return the colour of a point: one for AMCL and its variants, another one for the rest."""
    return style.PALETTE[1] if name.startswith("amcl") else style.PALETTE[0]


def _limit(errors: Sequence[float], metric: str) -> float:
    """Return the largest error that is drawn at its place.

    >>> _limit([11.2, 12.0, 15.0, 40.0], "top1_error"), _limit([1.0, 8.0], "oracle_error")
    (15.0, 8.0)
    """
    bound = OUTLIER.get(metric, np.inf) * min(errors, default=0.0)
    return max((error for error in errors if error <= bound), default=0.0)


def _range(errors: Sequence[float], limit: float) -> tuple[float, float]:
    """Return the ends of an axis for errors up to the limit; it starts at 0 unless all errors are far from it."""
    smallest = min(errors, default=0.0)
    low = 0.0 if smallest < 0.5 * limit else smallest - 0.15 * (limit - smallest)
    return low, limit + 0.1 * (limit - low) + 1e-6

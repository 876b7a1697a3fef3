"""Tables, and their conversion to terminal output, Markdown, LaTeX and PNG."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import TYPE_CHECKING

from torchmcl.errors import UsageError
from torchmcl.studies import comparison
from torchmcl.studies.comparison import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Group

MISSING = "–"  # noqa: RUF001

LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MISSING: "--",
    "✓": r"$\surd$",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
}


@dataclass(frozen=True)
class Table:
    """A table of text cells, with a caption, notes and a table of comparisons below it.

    The caption ends with `command`, the command that trains the runs of the table.

    >>> print(markdown(Table("Errors", ("method", "top-1"), [("amcl", "9.74")], caption="Percent.", command="do it")))
    ### Errors
    <BLANKLINE>
    | method | top-1 |
    |---|---:|
    | amcl | 9.74 |
    <BLANKLINE>
    Percent. Command: `do it`
    <BLANKLINE>
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = field(default_factory=tuple)
    comparisons: Sequence[Comparison] = field(default_factory=tuple)
    command: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UsageError(f"Expected {len(self.columns)} cells per row, got {len(row)}: {' | '.join(row)}.")

    @property
    def parts(self) -> "list[Table]":
        """This table and, if there are comparisons, the table of them."""
        if not self.comparisons:
            return [self]
        rows, about = comparison.rows(self.comparisons), comparison.caption(self.comparisons)
        return [self, Table(f"{self.title}: differences", comparison.COLUMNS, rows, about)]

    def below(self, quote: str = "") -> str:
        """Return the caption and the command, in quotes."""
        return " ".join(filter(None, (self.caption, self.command and f"Command: {quote}{self.command}{quote}")))

    def numeric(self, column: int) -> bool:
        """Return whether a column holds numbers, which are right-aligned."""
        cells = [row[column] for row in self.rows if row[column] not in ("", MISSING)]
        return bool(cells) and all(re.match(r"[-+<]?[\d.,]+(\s|K?$)", cell) for cell in cells)


def rich_table(table: Table, width: int | None = None) -> "Group":
    """Convert a table to rich tables for a terminal of `width` columns; see `split`."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    out = []
    for part in (block for whole in table.parts for block in split(whole, width)):
        below = "\n".join([part.below(), *part.notes]).strip()
        shown = RichTable(title=Text(part.title), caption=Text(below), caption_justify="left", title_justify="left")
        fits = width is None or sum(_widths(part)) < width
        for column, name in enumerate(part.columns):
            shown.add_column(name, justify="right" if part.numeric(column) else "left", no_wrap=fits, overflow="fold")
        for row in part.rows:
            shown.add_row(*(Text(cell) for cell in row))
        out.append(shown)
    return Group(*out)


def split(table: Table, width: int | None) -> list[Table]:
    """Divide the columns of a table among tables of at most `width` characters, which repeat the first columns.

    The first columns are those before the first number. The comparisons are left out; see `Table.parts`.

    >>> [part.columns for part in split(Table("", ("method", "error", "cost"), [("amcl", "9.7", "5.0")]), 18)]
    [('method', 'error'), ('method', 'cost')]
    """
    widths, first = _widths(table), 1
    if width is None or sum(widths) < width:
        return [replace(table, comparisons=())]
    while first < len(widths) and not table.numeric(first) and sum(widths[: first + 1]) <= width // 2:
        first += 1
    key = min(sum(widths[:first]), width // 2)
    blocks: list[list[int]] = [[]]
    for column in range(first, len(widths)):
        if blocks[-1] and key + sum(widths[at] for at in (*blocks[-1], column)) >= width:
            blocks.append([])
        blocks[-1].append(column)
    parts = list[Table]()
    for block in blocks:
        chosen = [*range(first), *block]
        rows = [[row[column] for column in chosen] for row in table.rows]
        parts.append(Table(table.title if not parts else "", tuple(table.columns[at] for at in chosen), rows))
    return [*parts[:-1], replace(parts[-1], caption=table.caption, notes=table.notes, command=table.command)]


def _widths(table: Table) -> list[int]:
    """Return the number of characters of each column with its frame, without the frame at the end of the table."""
    return [max(map(len, column)) + 3 for column in zip(*_lines(table), strict=True)]


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal."""
    from rich.console import Console

    console = Console()
    console.print(rich_table(table, console.width))


def markdown(table: Table) -> str:
    """Convert a table to Markdown."""
    lines = [f"### {table.title}"]
    for part in table.parts:
        rule = "".join("|---:" if part.numeric(column) else "|---" for column in range(len(part.columns))) + "|"
        rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in part.rows]
        lines += ["", f"| {' | '.join(part.columns)} |", rule, *rows, "", part.below("`")]
        lines += ["", *(f"- {note}" for note in part.notes)] if part.notes else []
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """Convert a table to LaTeX that requires booktabs and graphicx; a wide table is scaled to the line width."""
    return "\n".join(map(_latex, table.parts))


def _latex(table: Table) -> str:
    alignment = "".join("r" if table.numeric(column) else "l" for column in range(len(table.columns)))
    rows = [" & ".join(map(escape_latex, row)) + r" \\" for row in table.rows]
    caption = " ".join(escape_latex(part.rstrip(".") + ".") for part in (table.title, table.caption) if part)
    caption += rf" Command: \texttt{{{escape_latex(table.command)}}}" if table.command else ""
    notes = [r"\par\smallskip\footnotesize\raggedright", *(escape_latex(note) + r" \\" for note in table.notes)]
    label = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(map(escape_latex, table.columns)) + r" \\",
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}}",
            rf"\caption{{{caption}}}",
            rf"\label{{table:{label}}}",
            *(notes if table.notes else ()),
            r"\end{table}",
            "",
        ]
    )


def escape_latex(cell: str) -> str:
    r"""Escape text for LaTeX.

    >>> escape_latex("50 % ± 1, a_b")
    '50 \\% $\\pm$ 1, a\\_b'
    """
    return "".join(LATEX.get(letter, letter) for letter in cell)


def png(table: Table) -> "Figure":
    """Draw a table as a figure, with horizontal rules only, as in printed tables."""
    from matplotlib.figure import Figure

    parts = table.parts
    widths = [
        [max(len(row[column]) for row in _lines(part)) + 3 for column in range(len(part.columns))] for part in parts
    ]
    total, line_height = max(60, *map(sum, widths)), 0.23
    columns = int(1.55 * total)  # characters per line of the caption, which has a smaller font
    below = [[line for text in (part.below(), *part.notes) if text for line in wrap(text, columns)] for part in parts]
    depths = [len(_lines(part)) + 2.4 + 0.8 * len(lines) for part, lines in zip(parts, below, strict=True)]
    across, height = 0.085 * total + 0.3, line_height * sum(depths)
    figure = Figure(figsize=(across, height))
    axes = figure.add_axes((0.15 / across, 0, 1 - 0.3 / across, 1))
    axes.set(xlim=(0, total), ylim=(-sum(depths), 0))
    axes.axis("off")
    top = 0.0
    for part, own, lines, depth in zip(parts, widths, below, depths, strict=True):
        _draw(axes, part, own, lines, top - 1.2)
        top -= depth
    return figure


def _lines(table: Table) -> list[Sequence[str]]:
    return [table.columns, *table.rows]


def _draw(axes: "Axes", table: Table, widths: Sequence[int], below: Sequence[str], top: float) -> None:
    cells = _lines(table)
    axes.text(0, top + 0.4, table.title, weight="bold", fontsize=10, va="center")
    for index, row in enumerate(cells):
        start = 0
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            x, align = (start + width - 1.5, "right") if table.numeric(column) else (start + 0.5, "left")
            axes.text(x, top - index - 1, cell, ha=align, va="center", fontsize=9)
            start += width
    for y, weight in ((-0.5, 1.2), (-1.5, 0.6), (-len(cells) - 0.5, 1.2)):
        axes.plot((0, sum(widths)), (top + y, top + y), color="black", linewidth=weight, clip_on=False)
    for index, part in enumerate(below):
        axes.text(0, top - len(cells) - 1.2 - 0.8 * index, part, fontsize=7.5, color="#444444", va="center")

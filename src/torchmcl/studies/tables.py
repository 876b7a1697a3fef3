"""Tables, and their conversion to terminal output, Markdown, LaTeX and PNG."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING

from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable

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
    """A table of text cells, with a caption and notes below it.

    >>> print(markdown(Table("Errors", ("method", "top-1"), [("amcl", "9.74")], caption="Percent.")))
    ### Errors
    <BLANKLINE>
    | method | top-1 |
    |---|---:|
    | amcl | 9.74 |
    <BLANKLINE>
    Percent.
    <BLANKLINE>
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UsageError(f"Expected {len(self.columns)} cells per row, got {len(row)}: {' | '.join(row)}.")

    def numeric(self, column: int) -> bool:
        """Return whether a column holds numbers, which are right-aligned."""
        cells = [row[column] for row in self.rows if row[column] not in ("", MISSING)]
        return bool(cells) and all(re.match(r"[-+]?[\d.,]+(\s|K?$)", cell) for cell in cells)


def rich_table(table: Table) -> "RichTable":
    """Convert a table to a rich table for the terminal."""
    from rich.table import Table as RichTable
    from rich.text import Text

    below = "\n".join([table.caption, *table.notes])
    out = RichTable(title=Text(table.title), caption=Text(below), caption_justify="left", title_justify="left")
    for column, name in enumerate(table.columns):
        out.add_column(name, justify="right" if table.numeric(column) else "left", no_wrap=True)
    for row in table.rows:
        out.add_row(*(Text(cell) for cell in row))
    return out


def markdown(table: Table) -> str:
    """Convert a table to Markdown."""
    rule = "".join("|---:" if table.numeric(column) else "|---" for column in range(len(table.columns))) + "|"
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows]
    body = [f"### {table.title}", "", f"| {' | '.join(table.columns)} |", rule, *rows, "", table.caption]
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([*body, *notes]) + "\n"


def latex(table: Table) -> str:
    """Convert a table to LaTeX that requires booktabs and graphicx; a wide table is scaled to the line width."""
    alignment = "".join("r" if table.numeric(column) else "l" for column in range(len(table.columns)))
    rows = [" & ".join(map(escape_latex, row)) + r" \\" for row in table.rows]
    caption = " ".join(escape_latex(part.rstrip(".") + ".") for part in (table.title, table.caption) if part)
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

    cells = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in cells) + 3 for column in range(len(table.columns))]
    total, line_height = sum(widths), 0.23
    columns = int(1.55 * max(total, 60))  # characters per line of the caption, which has a smaller font
    below = [line for part in (table.caption, *table.notes) if part for line in wrap(part, columns)]
    depth = len(cells) + 1.2 + 0.8 * len(below)
    across, height = 0.085 * max(total, 60) + 0.3, line_height * (depth + 1.2)
    figure = Figure(figsize=(across, height))
    axes = figure.add_axes((0.15 / across, 0, 1 - 0.3 / across, 1))
    axes.set(xlim=(0, max(total, 60)), ylim=(-depth, 1.2))
    axes.axis("off")
    axes.text(0, 0.4, table.title, weight="bold", fontsize=10, va="center")
    for index, row in enumerate(cells):
        start = 0
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            x, align = (start + width - 1.5, "right") if table.numeric(column) else (start + 0.5, "left")
            axes.text(x, -index - 1, cell, ha=align, va="center", fontsize=9)
            start += width
    for y, weight in ((-0.5, 1.2), (-1.5, 0.6), (-len(cells) - 0.5, 1.2)):
        axes.plot((0, total), (y, y), color="black", linewidth=weight, clip_on=False)
    for index, part in enumerate(below):
        axes.text(0, -len(cells) - 1.2 - 0.8 * index, part, fontsize=7.5, color="#444444", va="center")
    return figure

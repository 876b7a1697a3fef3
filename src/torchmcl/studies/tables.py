import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable

MISSING = "–"  # noqa: RUF001

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
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
    """Cells of text under columns, a title, a caption that says at what scale, and notes.

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
                raise UsageError(f"Expected {len(self.columns)} cells a row, got {len(row)}: {' | '.join(row)}.")

    def numeric(self, column: int) -> bool:
        """Whether a column is of numbers, which are set to the right."""
        cells = [row[column] for row in self.rows if row[column] not in ("", MISSING)]
        return bool(cells) and all(re.match(r"[-+]?[\d.,]+(\s|K?$)", cell) for cell in cells)


def text(table: Table) -> "RichTable":
    """For the terminal."""
    from rich.table import Table as RichTable
    from rich.text import Text

    below = "\n".join([table.caption, *table.notes])
    made = RichTable(title=Text(table.title), caption=Text(below), caption_justify="left", title_justify="left")
    for column, name in enumerate(table.columns):
        made.add_column(name, justify="right" if table.numeric(column) else "left", no_wrap=True)
    for row in table.rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def markdown(table: Table) -> str:
    """For GitHub and the docs."""
    rule = "".join("|---:" if table.numeric(column) else "|---" for column in range(len(table.columns))) + "|"
    rows = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows]
    body = [f"### {table.title}", "", f"| {' | '.join(table.columns)} |", rule, *rows, "", table.caption]
    notes = ["", *(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n".join([*body, *notes]) + "\n"


def latex(table: Table) -> str:
    """A float for a paper that uses booktabs and graphicx: every cell escaped, shrunk where wider than the line."""
    alignment = "".join("r" if table.numeric(column) else "l" for column in range(len(table.columns)))
    rows = [" & ".join(map(escaped, row)) + r" \\" for row in table.rows]
    caption = " ".join(escaped(part.rstrip(".") + ".") for part in (table.title, table.caption) if part)
    notes = [r"\par\smallskip\footnotesize\raggedright", *(escaped(note) + r" \\" for note in table.notes)]
    label = re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(map(escaped, table.columns)) + r" \\",
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


def escaped(cell: str) -> str:
    r"""Text as LaTeX sets it.

    >>> escaped("50 % ± 1, a_b")
    '50 \\% $\\pm$ 1, a\\_b'
    """
    return "".join(LATEX.get(letter, letter) for letter in cell)


def png(table: Table) -> "Figure":
    """The table as a picture: rules above and below, as in print."""
    from matplotlib.figure import Figure

    cells = [table.columns, *table.rows]
    widths = [max(len(row[column]) for row in cells) + 3 for column in range(len(table.columns))]
    total, line = sum(widths), 0.23
    below = [wrapped for part in (table.caption, *table.notes) if part for wrapped in wrap(part, max(total, 60))]
    depth = len(cells) + 1.2 + 0.8 * len(below)
    across, height = 0.085 * max(total, 60) + 0.3, line * (depth + 1.2)
    figure = Figure(figsize=(across, height))
    axes = figure.add_axes((0.15 / across, 0, 1 - 0.3 / across, 1))
    axes.set(xlim=(0, max(total, 60)), ylim=(-depth, 1.2))
    axes.axis("off")
    axes.text(0, 0.4, table.title, weight="bold", fontsize=10, va="center")
    for at, row in enumerate(cells):
        start = 0
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            right = table.numeric(column)
            axes.text(
                start + (width - 1.5 if right else 0.5),
                -at - 1,
                cell,
                ha="right" if right else "left",
                va="center",
                fontsize=9,
            )
            start += width
    for y, weight in ((-0.5, 1.2), (-1.5, 0.6), (-len(cells) - 0.5, 1.2)):
        axes.plot((0, total), (y, y), color="black", linewidth=weight, clip_on=False)
    for at, part in enumerate(below):
        axes.text(0, -len(cells) - 1.2 - 0.8 * at, part, fontsize=7.5, color="#444444", va="center")
    return figure


def wrap(part: str, width: int) -> list[str]:
    """Lines of a small text; it is narrower than the cells."""
    from textwrap import wrap as by_words

    return by_words(part, int(1.55 * width))

import io
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from torchmcl.errors import UsageError
from torchmcl.studies.tables import LATEX, MISSING, Table, escape_latex, latex, markdown, png, rich_table

TABLE = Table(
    "A_title & 50 %",
    ("method", "top-1 #", "a|b"),
    [("amcl_x", "1.00 ± 0.10", "✓"), ("{ie}", MISSING, "")],
    "5 % of $N$; ~a^b \\ <c>.",
    ["note: 3_4"],
)
DOCUMENT = "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}\n%s\\end{document}\n"


def test_latex_is_balanced_and_escaped():
    text = latex(TABLE)
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 1
    plain = re.sub(r"\\[%&#_$]|\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    body = text.split("\\toprule")[1].split("\\bottomrule")[0]
    for row in re.findall(r"^(?!\\midrule)(.+) \\\\$", body, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)&", row)) == len(TABLE.columns) - 1
    assert "amcl\\_x" in text
    assert text.isascii()


@given(st.text(alphabet=[*LATEX, "a", "1", " "], max_size=30))
def test_escaped_text_has_nothing_special_left(text):
    made = escape_latex(text)
    rest = re.sub(r"\\(textbackslash|textasciitilde|textasciicircum|textbar|ldots)\{\}|\\[&%$#_{}]", "", made)
    rest = re.sub(r"\$(\\pm|\\surd|[<>])\$", "", rest)
    assert not set(rest) & set("\\&%$#_{}~^")


@pytest.mark.skipif(not (shutil.which("pdflatex") or shutil.which("tectonic")), reason="no LaTeX on this machine")
@pytest.mark.parametrize("across", [1, 8])
def test_latex_compiles_and_fits_the_line(tmp_path, across):
    path = tmp_path / "table.tex"
    path.write_text(
        DOCUMENT % latex(replace(TABLE, columns=TABLE.columns * across, rows=[r * across for r in TABLE.rows]))
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"] if shutil.which("pdflatex") else ["tectonic"]
    done = subprocess.run([*command, path.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout + done.stderr


def test_markdown_has_a_cell_for_each_column():
    lines = markdown(TABLE).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows[2:]} == {4}
    assert rows[1] == "|---|---:|---|"
    assert "- note: 3_4" in lines


def test_the_command_follows_the_caption():
    table = replace(TABLE, command="torchmcl study run a_b --scale mini")
    assert "\\ <c>. Command: `torchmcl study run a_b --scale mini`\n\n- note" in markdown(table)
    assert r"Command: \texttt{torchmcl study run a\_b --scale mini}}" in latex(table)
    printed = io.StringIO()
    Console(file=printed, width=200).print(rich_table(table))
    assert "Command: torchmcl study run a_b --scale mini" in " ".join(printed.getvalue().split())
    assert any("--scale mini" in text.get_text() for text in png(table).axes[0].texts)


def test_a_row_that_does_not_fit():
    with pytest.raises(UsageError, match="Expected 2 cells per row, got 1"):
        Table("", ("a", "b"), [("1",)])


def test_nothing_overlaps_in_the_picture():
    """Every cell is drawn, within the picture, and no two texts lie over each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    long = Table("Title", ("a", "much longer column"), [("word " * 3, "1.00 ± 0.10")] * 3, "caption " * 40, ["note"])
    figure = png(long)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
    width, height = figure.get_size_inches() * figure.dpi
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
    for i, one in enumerate(boxes):
        assert not any(one.shrunk(0.9, 0.9).overlaps(other.shrunk(0.9, 0.9)) for other in boxes[i + 1 :])


def test_a_wide_table_is_divided_for_the_terminal():
    """Every cell is there in whole, each block repeats the first columns, and no line is too long."""
    columns = ("method", "memory", *(f"column {i}" for i in range(12)))
    rows = [(f"method {r}", "yes", *(f"{100 + 12 * r + i}.00 ± 0.10" for i in range(12))) for r in range(3)]
    wide = Table("Wide", columns, rows, "About " * 30, ["note"], command="torchmcl study run wide")
    for width in (60, 80, 120, 1000):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(rich_table(wide, width))
        lines = console.export_text().splitlines()
        assert max(map(len, lines)) <= width
        text = "\n".join(lines)
        assert all(text.count(cell) == 1 for row in rows for cell in row[2:])
        blocks = text.count("method 0")
        assert (blocks == 1) == (width == 1000)
        assert text.count("column 3") == text.count("Wide") == text.count("note") == 1
    long = Table("", ("method", "error"), [("a very long name of a configuration " * 4, "1.0")])
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(rich_table(long, 60))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text

"""Insert the tables of results into docs/results.md and README.md.

Run `torchmcl study show NAME --scale SCALE` first, then `python docs/results.py`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "oracle-error.md",
    ROOT / "docs" / "studies.md",
    ROOT / "README.md",
)
STORE = ROOT / "results"
BLOCK = re.compile(r"<!-- (study|table): (\w+)( \w+)?( \[.*?\])? -->\n.*?<!-- end -->", re.DOTALL)
SCALES = ("standard", "scratch", "mini")  # the first one with results is shown, unless a mark names another one


def filled(page: str) -> str:
    """Return the page with the table, caption, comparisons and figure, if any, of each study between its marks.

    Between the marks `table: NAME [COLUMN, …]` and `end`, insert only the table, with these columns or all, and its
    caption. A scale can follow the name.
    """

    def fill(block: re.Match[str]) -> str:
        kind, study, scale, columns = block.groups()
        text = shown(study, (scale or "").strip())
        if kind == "table":
            table, caption = text.split("\n\n")[:2]
            text = f"{selected(table, columns)}\n\n{caption}"
        return f"<!-- {kind}: {study}{scale or ''}{columns or ''} -->\n{text}\n<!-- end -->"

    return BLOCK.sub(fill, page)


def selected(table: str, columns: str | None) -> str:
    """Return a Markdown table with the columns named in `[COLUMN, …]`, or with all columns."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    wanted = [name.strip() for name in columns.strip(" []").split(",")] if columns else rows[0]
    chosen = [rows[0].index(name) for name in wanted]
    return "\n".join("| " + " | ".join(row[at] for at in chosen) + " |" for row in rows) if columns else table


def shown(study: str, scale: str | None = None) -> str:
    """Return the text written by `torchmcl study show` or by a script next to the results, without its heading."""
    scale = scale or next((scale for scale in SCALES if (STORE / study / f"{scale}.md").is_file()), None)
    written = STORE / study / (f"{scale}.md" if scale else "table.md")
    _, _, text = written.read_text(encoding="utf-8").partition("\n\n")
    figure = STORE / study / f"{scale}-figure.png"
    return text.strip() + (f"\n\n![{study}](../results/{study}/{figure.name})" if figure.is_file() else "")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")

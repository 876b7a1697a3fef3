"""Insert the tables of results into docs/results.md and README.md.

Run `torchmcl study show NAME --scale mini` first, then `python docs/results.py`.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES, STORE = (ROOT / "docs" / "results.md", ROOT / "README.md"), ROOT / "results"
BLOCK = re.compile(r"<!-- (study|table): (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str) -> str:
    """Return the page with the table, caption, intervals and figure, if any, of each study between its marks.

    Between the marks `table: NAME` and `end`, insert only the table and the caption.
    """

    def fill(block: re.Match[str]) -> str:
        text = shown(block[2])
        if block[1] == "table":
            text = "\n\n".join(text.split("\n\n")[:2])
        return f"<!-- {block[1]}: {block[2]} -->\n{text}\n<!-- end -->"

    return BLOCK.sub(fill, page)


def shown(study: str) -> str:
    """Return the text written by `torchmcl study show` or by a script next to the results, without its heading."""
    written = STORE / study / ("mini.md" if (STORE / study / "mini.md").is_file() else "table.md")
    _, _, text = written.read_text(encoding="utf-8").partition("\n\n")
    figure = STORE / study / "mini-figure.png"
    return text.strip() + (f"\n\n![{study}](../results/{study}/{figure.name})" if figure.is_file() else "")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")

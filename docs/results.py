"""Put the tables of results into docs/results.md: `torchmcl study show NAME --scale mini`, then this."""

import re
from pathlib import Path

PAGE, STORE = Path(__file__).parent / "results.md", Path(__file__).parents[1] / "results"
BLOCK = re.compile(r"<!-- study: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str) -> str:
    """The page with each study's table, caption and intervals between its marks, and its figure, where it has one."""
    return BLOCK.sub(lambda block: f"<!-- study: {block[1]} -->\n{shown(block[1])}\n<!-- end -->", page)


def shown(study: str) -> str:
    """What `torchmcl study show` wrote, or a script beside its results, without its heading."""
    written = STORE / study / ("mini.md" if (STORE / study / "mini.md").is_file() else "table.md")
    _, _, text = written.read_text(encoding="utf-8").partition("\n\n")
    figure = STORE / study / "mini-figure.png"
    return text.strip() + (f"\n\n![{study}](../results/{study}/{figure.name})" if figure.is_file() else "")


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Insert the tables of results into pages of docs/ and README.md.

Run `torchmcl study show NAME --scale SCALE` and `torchmcl study statements` first, then `python docs/results.py`.
"""

import re
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "oracle-error.md",
    ROOT / "docs" / "studies.md",
    ROOT / "docs" / "regression.md",
    ROOT / "README.md",
)
STORE = ROOT / "results"
EXPLAINED = re.compile(r"strict oracle: .*? split\.")  # the sentence that explains the columns of the protocol
BLOCK = re.compile(r"<!-- (study|table): (\w+)( \w+)?( \[.*?\])?( rows [^>]*?)? -->\n.*?<!-- end -->", re.DOTALL)
GRID = re.compile(r"<!-- grid: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
OWNED = re.compile(r"<!-- owned: size -->\n.*?<!-- end -->", re.DOTALL)
STATEMENTS = re.compile(r"<!-- statements -->\n.*?<!-- end -->", re.DOTALL)
SCALES = ("standard", "scratch", "mini")  # the first one with results is shown, unless a mark names another one


def filled(page: str) -> str:
    """Return the page with the table, caption, comparisons and figure, if any, of each study between its marks.

    Between the marks `table: NAME [COLUMN, …] rows LABEL; …` and `end`, insert only the table, with these columns or
    all, with the rows that begin with these labels or all, and its caption. A scale can follow the name.
    """

    def fill(block: re.Match[str]) -> str:
        kind, study, scale, columns, rows = block.groups()
        text = shown(study, (scale or "").strip())
        if kind == "table":
            table, caption = text.split("\n\n")[:2]
            text = f"{selected(table, columns, rows)}\n\n{shortened(caption, columns)}"
        return f"<!-- {kind}: {study}{scale or ''}{columns or ''}{rows or ''} -->\n{text}\n<!-- end -->"

    _, _, statements = (STORE / "statements.md").read_text(encoding="utf-8").partition("\n\n")
    page = STATEMENTS.sub(lambda _: f"<!-- statements -->\n{linked(statements.strip())}\n<!-- end -->", page)
    page = GRID.sub(lambda match: f"<!-- grid: {match[1]} -->\n{grid(match[1])}\n<!-- end -->", page)
    page = OWNED.sub(lambda _: f"<!-- owned: size -->\n{owned()}\n<!-- end -->", page)
    return BLOCK.sub(fill, page)


def grid(study: str) -> str:
    """Return a table of the errors with every setting of the grid, from the stored results of a study."""
    from torchmcl.studies import load
    from torchmcl.studies.scales import TUNING_SEEDS, scale
    from torchmcl.studies.store import Store
    from torchmcl.studies.tuning import configurations, with_setting

    size, stored = scale("standard", study), Store(STORE).read(study, "standard")
    head = [" / ".join(f"{value:g}" for value in setting.values()) for setting in size.grid]
    lines = [["configuration", *head, "seconds"], ["---", *["---:"] * (len(head) + 1)]]
    for specs in configurations(load(study).runs(size)):
        tuning = [spec for spec in specs if spec.options["seed"] in TUNING_SEEDS]
        cells, seconds = [], []
        for setting in size.grid:
            found = [stored[with_setting(spec, setting).hash] for spec in tuning]
            errors = mean(one["validation"]["top1_error"] for one in found)
            cells.append(f"{errors:.1f} / {mean(one['records']['training']['own_error'] for one in found):.1f}")
            seconds += [one["trained"]["seconds"] for one in found]
        options = {name: value for name, value in specs[0].options.items() if name in ("members", "memory", "warmup")}
        name = ", ".join([specs[0].options["method"], *(f"{option} {value}" for option, value in options.items())])
        lines.append([name, *cells, f"{median(seconds):.0f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def owned() -> str:
    """Return a table of the members of AMCL in the study `size` by the number of classes that they own (K = 1)."""
    from torchmcl.studies import Results
    from torchmcl.studies.definitions import size
    from torchmcl.studies.scales import scale
    from torchmcl.studies.store import Store

    own, by_number = scale("standard", "size"), dict[int, list[list[float]]]()
    for result in Results(own, Store(STORE).read("size", "standard")).of(size.spec, own, "cifar10", "amcl", 1):
        errors = [of_class[1:] for of_class in result["errors_of_groups"]]  # (classes, M), without the ensemble
        for m in range(size.MEMBERS):
            ours = [errors[c][m] for c, flags in enumerate(result["flags"]) if flags[m]]
            by_number.setdefault(len(ours), []).append(ours)
    lines = [["classes owned", "members", "mean error on them", "largest"], ["---:"] * 4]
    for count, members in sorted(by_number.items()):
        found = [error for ours in members for error in ours]
        cells = [f"{mean(found):.2f}", f"{max(found):.1f}"] if found else ["–", "–"]  # noqa: RUF001
        lines.append([str(count), str(len(members)), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def linked(statements: str) -> str:
    """Return the table of statements with a link to the table of each study."""

    def link(match: re.Match[str]) -> str:
        name, scale = match.groups()
        exists = (STORE / name / f"{scale}.md").is_file()
        return f"| [{name}](../results/{name}/{scale}.md), {scale} |" if exists else match[0]

    return re.sub(r"\| (\w+), (\w+) \|$", link, statements, flags=re.MULTILINE)


def selected(table: str, columns: str | None, labels: str | None = None) -> str:
    """Return a Markdown table with the columns named in `[COLUMN, …]` and the rows in `rows LABEL; …`, or with all."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    wanted = [name.strip() for name in columns.strip(" []").split(",")] if columns else rows[0]
    chosen = [rows[0].index(name) for name in wanted]
    if labels:
        starts = tuple(f"{label.strip()} " for label in labels.removeprefix(" rows ").split(";"))
        rows = rows[:2] + [row for row in rows[2:] if " ".join(filter(None, row)).startswith(starts)]
    return "\n".join("| " + " | ".join(row[at] for at in chosen) + " |" for row in rows) if columns or labels else table


def shortened(caption: str, columns: str | None) -> str:
    """Return a caption without the explanations of columns that are not shown."""
    names = {part.strip() for part in columns.strip(" []").split(",")} if columns else None

    def kept(explained: re.Match[str]) -> str:
        clauses = [one for one in explained[0].rstrip(".").split("; ") if names is None or one.split(":")[0] in names]
        return "; ".join(clauses) + "." * bool(clauses)

    return EXPLAINED.sub(kept, caption).replace("  ", " ")


def shown(study: str, scale: str | None = None) -> str:
    """Return the text written by `torchmcl study show`, without its heading."""
    scale = scale or next(scale for scale in SCALES if (STORE / study / f"{scale}.md").is_file())
    _, _, text = (STORE / study / f"{scale}.md").read_text(encoding="utf-8").partition("\n\n")
    figure = STORE / study / f"{scale}-figure.png"
    return text.strip() + (f"\n\n![{study}](../results/{study}/{figure.name})" if figure.is_file() else "")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")

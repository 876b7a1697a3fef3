"""The page of the studies: what was measured beside what was published, sorted by any column."""

from pathlib import Path

from torchmcl._utils.html import Markup, join, tag
from torchmcl.errors import TorchmclError
from torchmcl.explorer.elements import notice
from torchmcl.studies import names, scales
from torchmcl.studies.show import show
from torchmcl.studies.tables import Table


def first(results: Path) -> tuple[str, str]:
    """The study and the scale to begin with: the first that anything is stored of, the largest scale of it."""
    for name in names():
        for scale in reversed(scales.NAMES):
            if any((results / name / scale).glob("*.json")):
                return name, scale
    return names()[0], scales.NAMES[0]


def page(name: str, scale: str, results: Path) -> Markup:
    """One study's table, with its caption and notes."""
    try:
        table, own, _ = show(name, scale, results=results)
    except TorchmclError as problem:
        return notice(str(problem).replace(str(results), results.name), "problem")
    notes = [note.replace(f" --results {results}", "") for note in table.notes]
    parts = [tag("h3", table.title), sortable(table), tag("p", table.caption, class_="mcl-legend")]
    if not own.found:
        parts.insert(1, notice("There are no results at this scale yet. The table shows only the published numbers."))
    if notes:
        parts.append(tag("ul", *(tag("li", note) for note in notes), class_="mcl-notes"))
    return join(parts)


def sortable(table: Table) -> Markup:
    """A table whose columns sort by a click; those of the paper are set apart."""
    kinds = [
        " ".join(
            kind for kind, yes in (("number", table.numeric(at)), ("paper", name.lower().startswith("paper"))) if yes
        )
        for at, name in enumerate(table.columns)
    ]
    heads = [
        tag("th", tag("button", name, data_sort=at), class_=kind, scope="col", aria_sort="none")
        for at, (name, kind) in enumerate(zip(table.columns, kinds, strict=True))
    ]
    rows = [
        tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True))) for row in table.rows
    ]
    made = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="mcl-table")
    return tag("div", made, class_="mcl-scroll")

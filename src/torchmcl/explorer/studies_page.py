"""The page of the studies: tables of stored results next to the published ones."""

from dataclasses import replace
from pathlib import Path

from torchmcl.errors import TorchmclError
from torchmcl.explorer.elements import notice, render
from torchmcl.studies import names, scales
from torchmcl.studies.show import show
from torchmcl.studies.tables import Table


def first(results: Path) -> tuple[str, str]:
    """Return the first study that has results, and the largest scale at which it has results."""
    for name in names():
        for scale in reversed(scales.NAMES):
            if any((results / name / scale).glob("*.json")):
                return name, scale
    return names()[0], scales.NAMES[0]


def page(name: str, scale: str, results: Path) -> str:
    """Render the table of a study with its caption, notes and comparisons."""
    try:
        table, own, _ = show(name, scale, results=results)
    except TorchmclError as error:
        return notice(str(error).replace(str(results), results.name), "problem")
    notes = [note.replace(f" --results {results}", "") for note in table.notes]
    parts = replace(table, notes=notes).parts
    return "".join(render_table(part, results=bool(own.by_hash)) for part in parts)


def render_table(table: Table, *, results: bool) -> str:
    """Render a table that can be sorted by any column; columns with published numbers are marked."""
    columns = []
    for i, name in enumerate(table.columns):
        kinds = ("number" if table.numeric(i) else "", "paper" if name.lower().startswith("paper") else "")
        columns.append((name, " ".join(filter(None, kinds))))
    return render("study", table=table, columns=columns, results=results)

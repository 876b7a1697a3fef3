"""The page of the studies: tables of stored results next to the published ones."""

from dataclasses import replace
from pathlib import Path

from torchmcl.errors import TorchmclError
from torchmcl.explorer.elements import notice, render
from torchmcl.studies import load, names, scales
from torchmcl.studies.show import show
from torchmcl.studies.tables import Table


def belonging(results: Path, data: str) -> list[tuple[str, str]]:
    """Return the names and scales of the studies that have results and train on a data set, in the order of `names`."""
    return [
        (name, scale)
        for name in names()
        for scale in reversed(scales.NAMES)
        if data and any((results / name / scale).glob("*.json")) and data in _data(name, scale)
    ]


def _data(name: str, scale: str) -> set[object]:
    """Return the data sets of a study; none if its definition cannot be read."""
    try:
        return {spec.options.get("data") for spec in load(name).runs(scales.scale(scale, name))}
    except TorchmclError:
        return set()


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

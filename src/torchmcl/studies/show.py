"""From the store to tables: nothing is trained here."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import IO

from torchmcl._utils import atomic, imports
from torchmcl.errors import UsageError, known_name
from torchmcl.studies import load, tables
from torchmcl.studies.caption import caption
from torchmcl.studies.scales import scale as scale_of
from torchmcl.studies.store import Store
from torchmcl.studies.study import Results, Select, Study
from torchmcl.studies.tables import Table


def show(
    name: str, scale: str, *, results: str | Path = "results", select: Select = "validation", seeds: int | None = None
) -> tuple[Table, Results, Study]:
    """A study's table from what is stored, the published numbers beside; what is missing is said."""
    known_name("part to choose on", select, ("validation", "test"))
    study, size = load(name), scale_of(scale, name, seeds=seeds)
    found = Store(results).read(name, scale)
    if seeds is None:  # whatever other seeds were run belongs to the table, too
        expected = size.seeds
        size = size.with_seeds(sorted({*expected, *(result["seed"] for result in found.values())}))
        needed = study.runs(size.with_seeds(expected))
    else:
        needed = study.runs(size)
    specs = study.runs(size)
    there = sum(spec.hash in found for spec in needed)
    own = Results(size, {spec.hash: found[spec.hash] for spec in specs if spec.hash in found}, select)
    table = study.table(own)
    title = f"{table.title}, {scale}" + (" (choices made on the TEST set)" if select == "test" else "")
    notes = list(table.notes)
    if there < len(needed):
        where = "" if str(results) == "results" else f" --results {shlex.quote(str(results))}"
        where += (f" --seeds {seeds}" if seeds else "") + imports.options(study.place)
        rest = f"torchmcl study run {shlex.quote(study.place or name)} --scale {scale}{where}"
        notes.append(f"{there} of {len(needed)} runs are there. The rest: {rest}")
    shown = [spec for spec in specs if spec.hash in found] or needed
    words = caption(shown, found)
    return replace(table, title=title, caption=f"{table.caption} {words}".strip(), notes=notes), own, study


def write(table: Table, results: Results, study: Study, out: str | Path) -> list[Path]:
    """Markdown, LaTeX and PNG of a table, and of its figure where it has one, into OUT/STUDY."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as absent:
        raise UsageError(
            "Expected matplotlib for the pictures, found none. Try: pip install 'torchmcl[plots]'"
        ) from absent
    folder = Path(out) / study.name
    atomic.make_folder(folder)
    stem = results.scale.name + ("-selected-on-test" if results.select == "test" else "")
    paths = [folder / f"{stem}{ending}" for ending in (".md", ".tex", ".png")]
    atomic.write(paths[0], tables.markdown(table))
    atomic.write(paths[1], tables.latex(table))
    atomic.write(paths[2], lambda file: save(tables.png(table), file))
    figure = study.figure(results) if study.figure is not None and results.found else None
    if figure is not None:
        paths.append(folder / f"{stem}-figure.png")
        atomic.write(paths[3], lambda file: save(figure, file))
    return paths


def save(figure: "object", file: IO[bytes]) -> None:
    """A figure as PNG."""
    figure.savefig(file, dpi=150, format="png")  # type: ignore[attr-defined]

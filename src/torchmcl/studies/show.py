"""Tables and figures from stored results, without training."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from torchmcl._utils import atomic, imports
from torchmcl.errors import UsageError, known_name
from torchmcl.studies import load, tables, tuning
from torchmcl.studies.caption import caption
from torchmcl.studies.scales import scale as scale_of
from torchmcl.studies.spec import Spec
from torchmcl.studies.store import Result, Store
from torchmcl.studies.study import PROTOCOL, Results, Select, Study, protocol_caption, tuning_notes
from torchmcl.studies.tables import Table


def show(
    name: str, scale: str, *, results: str | Path = "results", select: Select = "validation", seeds: int | None = None
) -> tuple[Table, Results, Study]:
    """Build a study's table, which shows the stored results next to the published numbers.

    K is chosen on the split `select`. By default, the table includes the seeds of the scale and all stored seeds.

    Returns:
        The table (with the command that trains its runs, and a note if runs are missing), the results from which it
        was built, and the study.
    """
    known_name("split", select, ("validation", "test"))
    study, size = load(name), scale_of(scale, name, seeds=seeds)
    stored = Store(results).read(name, scale)
    needed = list(tuning.needed(study.runs(size), size, stored))
    if seeds is None:
        size = replace(size, seeds=tuple(sorted({*size.seeds, *(result["seed"] for result in stored.values())})))
    specs = list(tuning.needed(study.runs(size), size, stored))
    available = [spec for spec in specs if has_records(spec, stored)]
    own = Results(size, {spec.hash: stored[spec.hash] for spec in available}, select)
    table = study.table(own)
    title = f"{table.title}, {scale}" + (" (choices made on the TEST set)" if select == "test" else "")
    notes = [*table.notes, *tuning_notes(own, study.runs(size))]
    finished = sum(has_records(spec, stored) for spec in needed)
    if finished < len(needed):
        where = "" if str(results) == "results" else f" --results {shlex.quote(str(results))}"
        where += (f" --seeds {seeds}" if seeds else "") + imports.options(study.path)
        command = f"torchmcl study run {shlex.quote(study.path or name)} --scale {scale}{where}"
        notes.append(f"{finished} of {len(needed)} runs are available. Train the others: {command}")
    explained = protocol_caption(size) if PROTOCOL[0] in table.columns else ""
    text = " ".join(filter(None, (table.caption, explained, caption(available or needed, stored))))
    # Paths are left out, because a written table must not depend on the machine.
    command = f"torchmcl study run {study.name} --scale {scale}"
    return replace(table, title=title, caption=text, notes=notes, command=command), own, study


def has_records(spec: Spec, stored: Mapping[str, Result]) -> bool:
    """Return whether the result of a run is stored with all records of the run."""
    return spec.hash in stored and set(spec.record) <= set(stored[spec.hash]["records"])


def write(table: Table, results: Results, study: Study, out: str | Path) -> list[Path]:
    """Write a table as Markdown, LaTeX and PNG, and the study's figure if it has one, to the folder OUT/STUDY."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as absent:
        raise UsageError("Writing tables needs matplotlib. Install it with: pip install 'torchmcl[plots]'") from absent
    folder = Path(out) / study.name
    atomic.make_folder(folder)
    stem = results.scale.name + ("-selected-on-test" if results.select == "test" else "")
    paths = [folder / f"{stem}{ending}" for ending in (".md", ".tex", ".png")]
    atomic.write(paths[0], tables.markdown(table))
    atomic.write(paths[1], tables.latex(table))
    atomic.write(paths[2], lambda file: _save(tables.png(table), file))
    figure = study.figure(results) if study.figure is not None and results.by_hash else None
    if figure is not None:
        paths.append(folder / f"{stem}-figure.png")
        atomic.write(paths[3], lambda file: _save(figure, file))
    return paths


def _save(figure: object, file: IO[bytes]) -> None:
    figure.savefig(file, dpi=150, format="png")  # type: ignore[attr-defined]

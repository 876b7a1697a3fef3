"""Draw the imports between the folders of torchmcl, read from the code: `python docs/import_graph.py`.

Rows are the layers of the first import-linter contract in pyproject.toml, the lowest at the bottom. Raises ValueError
if a module is in no layer or imports from its own layer or a higher one, and CycleError if modules import each other.
"""

import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
INK, LINE, FILL, BAND = "#263238", "#00796b", "#e0f2f1", "#f5f7f8"
# Columns, counted from the middle one, so that no line passes behind a box. Modules not listed are in the middle.
COLUMNS = {
    "reporting": -1,
    "sklearn": 1,
    "lightning": 2,
    "testing": 1,
    "functional": 1,
    "data": -2,
    "networks": -1,
    "assignment": 1,
}
WIDTH, HEIGHT, COLUMN, ROW, TOP = 118, 30, 150, 66, 28  # sizes of a box, a column and a row; top margin

Edges = dict[str, set[str]]


def layers() -> list[list[str]]:
    """Return the layers of the contract, the highest first, as names below torchmcl."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[name.strip().removeprefix("torchmcl.") for name in row.split("|")] for row in rows]


def imports() -> Edges:
    """Return the folders and modules that each folder or module imports, except for type checking."""
    sys.path.insert(0, str(ROOT / "src"))
    graph = grimp.build_graph("torchmcl", exclude_type_checking_imports=True, cache_dir=None)
    sys.path.pop(0)
    modules = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    modules.pop("torchmcl")  # re-exports the public names
    TopologicalSorter(modules).prepare()
    edges: Edges = {}
    for name, imported in modules.items():
        below = edges.setdefault(name.split(".")[1], set())
        below |= {other.split(".")[1] for other in imported if other in modules}
    return {name: below - {name} for name, below in edges.items()}


def check(edges: Edges, rows: list[list[str]]) -> None:
    """Raise ValueError unless every edge leads to a lower layer."""
    level = {name: row for row, names in enumerate(rows) for name in names}
    if unknown := sorted(set(edges) ^ set(level)):
        raise ValueError(f"Update the contract in pyproject.toml. It and src/torchmcl differ in: {', '.join(unknown)}.")
    if upward := [f"{a} -> {b}" for a, below in edges.items() for b in sorted(below) if level[b] <= level[a]]:
        raise ValueError(f"These imports do not lead to a lower layer: {', '.join(upward)}. Remove them.")


def reduced(edges: Edges) -> Edges:
    """Return the transitive reduction: the edges without those that are implied by longer paths.

    >>> reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    {'a': {'b'}, 'b': {'c'}, 'c': set()}
    """

    def reached(name: str) -> set[str]:
        return edges[name].union(*map(reached, edges[name]))

    return {name: below.difference(*map(reached, below)) for name, below in edges.items()}


def draw(edges: Edges, rows: list[list[str]]) -> str:
    """Return the import graph as SVG."""
    shown = reduced(edges)
    left, right = min(COLUMNS.values()), max(COLUMNS.values())
    width, height = (right - left + 1) * COLUMN + 40, TOP + len(rows) * ROW + 24
    at = {
        name: (20 + (COLUMNS.get(name, 0) - left + 0.5) * COLUMN, TOP + row * ROW + HEIGHT / 2)
        for row, names in enumerate(rows)
        for name in names
    }
    bands = [
        f'<rect x="12" y="{TOP + row * ROW - 16}" width="{width - 24}" height="{ROW - 4}" rx="6" fill="{BAND}"/>'
        for row in range(len(rows))
    ]
    count, total = sum(map(len, shown.values())), sum(map(len, edges.values()))
    note = f"An arrow means “imports”. {count} of {total} dependencies are drawn; the others follow from these."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="14" '
            'font-family="Helvetica, Arial, \'DejaVu Sans\', sans-serif" role="img" '
            'aria-label="The folders of torchmcl by layer; every arrow leads to a lower layer.">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="9" markerHeight="9" '
            f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 L8 4 L0 8 Z" fill="{LINE}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>',
            *bands,
            *(line(a, b, shown, at) for a in at for b in sorted(shown[a])),
            *(box(name, *at[name]) for name in at),
            f'<text x="{width / 2:g}" y="{height - 15}" text-anchor="middle" font-size="13" fill="{INK}">{note}</text>',
            "</svg>\n",
        ]
    )


def line(source: str, target: str, edges: Edges, at: dict[str, tuple[float, float]]) -> str:
    """Return an arrow that is vertical or has one horizontal segment, in the gap next to the box in the middle column.

    Lines to the same box end side by side; the line from the farthest column is the outermost and the lowest.
    """
    (x1, y1), (x2, y2) = at[source], at[target]
    y1, y2 = y1 + HEIGHT / 2, y2 - HEIGHT / 2
    side = 1 if x1 > x2 else -1
    if COLUMNS.get(source, 0) == 0:
        bend = y1 + 14
    else:
        columns = sorted({abs(at[a][0] - x2) for a in edges if target in edges[a] and side * (at[a][0] - x2) > 0})
        rank = columns.index(abs(x1 - x2))
        x2, bend = x2 + side * 20 * (rank + 1), y2 - ROW + HEIGHT + 10 + 8 * rank
    turn = 7 * (1 if x2 > x1 else -1)
    corners = (
        f"V{bend - 7:g} Q{x1:g} {bend:g} {x1 + turn:g} {bend:g} H{x2 - turn:g} Q{x2:g} {bend:g} {x2:g} {bend + 7:g} "
    )
    path = f"M{x1:g} {y1:g} {corners if x1 != x2 else ''}V{y2:g}"
    return f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.6" marker-end="url(#tip)"/>'


def box(name: str, x: float, y: float) -> str:
    """Return a box with the name of a folder or module."""
    folder = (ROOT / "src/torchmcl" / name).is_dir()
    label = name + ("/" if folder else ".py")
    shape = f'<rect x="{x - WIDTH / 2:g}" y="{y - HEIGHT / 2:g}" width="{WIDTH}" height="{HEIGHT}" rx="7"'
    return (
        f'{shape} fill="{FILL if folder else "#ffffff"}" stroke="{LINE}" stroke-width="1.6"/>'
        f'<text x="{x:g}" y="{y + 5:g}" text-anchor="middle" fill="{INK}">{label}</text>'
    )


def picture() -> str:
    """Return the import graph of the current code as SVG."""
    edges, rows = imports(), layers()
    check(edges, rows)
    return draw(edges, rows)


if __name__ == "__main__":
    Path(__file__).with_name("import-graph.svg").write_text(picture(), encoding="utf-8")

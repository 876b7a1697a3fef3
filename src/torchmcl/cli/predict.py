"""Predict the class or the mask of each image, or the target of each row of a table."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from torchmcl.cli.options import add_option, add_query
from torchmcl.errors import UsageError


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run and the files, and the output options."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("files", type=str, nargs="+", help="images, folders of images, or tables: .csv, or .npz with x")
    add_option(parser, "out", "folder for the predicted masks of a segmentation run")
    add_query(parser)
    add_option(parser, "skip_unreadable", "leave out the files of a folder that cannot be read", bool)
    add_option(parser, "json", "print JSON, with members as indices from 0, as in Python", bool)
    add_option(parser, "csv", "print CSV, with members as indices from 0, as in Python", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.inference.predictor import Specialists

    if options["json"] and options["csv"]:
        raise UsageError("Choose either --json or --csv.")
    specialists = Specialists.load(options["run"])
    query = {name: options[name] for name in ("query", "budget")}
    given = {"masks": options["out"], "skip_unreadable": options["skip_unreadable"], "verbose": True}
    rows = specialists.predict_files(options["files"], **given, **query)
    if options["json"]:
        print(json.dumps(rows, indent=1))
        return 0
    if options["csv"]:
        print(table(rows), end="")
        return 0
    for row in rows:
        where = row.get("image") or f"{row['file']}, row {row['row']}"
        print(f"{where}: {numbers(row) if 'mean' in row else classes(row)}")
    return 0


def classes(row: dict[str, Any]) -> str:
    """Return the predicted class, or the file of the predicted mask, as text."""
    prediction = f"{row['label']} ({row['confidence']:.1%})" if "label" in row else f"mask {row['mask']}"
    answer = f"{prediction}, member {row['member'] + 1}"
    if not row["claimed"]:
        answer = f"no member claims it (otherwise {answer})"
    return f"{answer}{'' if row['accepted'] else ', rejected'}"


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV, with one column per number.

    >>> print(table([{"image": "a.png", "claimed": False, "claim": None, "mean": [1.5, 2.0]}]), end="")
    image,claimed,claim,mean 1,mean 2
    a.png,false,,1.5,2.0
    """
    flat = [dict(columns(row)) for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def columns(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each column; names of nested values are joined by a space."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value, start=1)
        for key, inner in pairs:
            yield from columns(inner, f"{name} {key}".strip())
    else:
        yield name, json.dumps(value) if isinstance(value, bool) else value


def numbers(row: dict[str, Any]) -> str:
    """Return the mean and the hypotheses with their scores, the most probable one first, as text."""
    pairs = sorted(zip(row["scores"], row["hypotheses"], strict=True), key=lambda pair: -pair[0])
    found = ", ".join(f"{vector(values)} ({score:.0%})" for score, values in pairs)
    return f"mean {vector(row['mean'])}, hypotheses {found}"


def vector(values: list[float]) -> str:
    """Return the values of one target as text.

    >>> vector([1.0]), vector([0.123456789, -2.0])
    ('1', '(0.123457, -2)')
    """
    texts = [f"{value:.6g}" for value in values]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"

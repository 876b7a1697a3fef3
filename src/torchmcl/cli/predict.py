"""Predict the class or the mask of each image, or the target of each row of a table."""

import json
from typing import Any

from torchmcl.cli.options import add_option


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run and the files, and the output options."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("files", type=str, nargs="+", help="image files, or tables: .csv, or .npz with an array x")
    add_option(parser, "out", "folder for the predicted masks of a segmentation run")
    add_option(parser, "json", "print JSON", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.inference.predictor import Specialists

    specialists = Specialists.load(options["run"])
    rows = specialists.predict_files(options["files"], masks=options["out"])
    if options["json"]:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        where = row.get("image") or f"{row['file']}, row {row['row']}"
        print(f"{where}: {numbers(row) if 'mean' in row else classes(row)}")
    return 0


def classes(row: dict[str, Any]) -> str:
    """Return the predicted class, or the file of the predicted mask, as text."""
    prediction = f"{row['label']} ({row['confidence']:.1%})" if "label" in row else f"mask {row['mask']}"
    return f"{prediction}, member {row['member']}{'' if row['accepted'] else ', rejected'}"


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

"""Predict the class or the mask of each image file."""

import json
from typing import Any

from torchmcl.cli.options import add_option


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run and the images, and the output options."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("images", type=str, nargs="+", help="image files")
    add_option(parser, "out", "folder for the predicted masks of a segmentation run")
    add_option(parser, "json", "print JSON", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.inference.predictor import Specialists

    specialists = Specialists.load(options["run"])
    rows = specialists.predict_files(options["images"], masks=options["out"])
    if options["json"]:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        prediction = f"{row['label']} ({row['confidence']:.1%})" if "label" in row else f"mask {row['mask']}"
        print(f"{row['image']}: {prediction}, member {row['member']}{'' if row['accepted'] else ', rejected'}")
    return 0

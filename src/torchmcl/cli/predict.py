"""Say what images show."""

import json
from typing import Any


def add_arguments(parser: Any) -> None:
    """Which run, which images."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("images", type=str, nargs="+", help="image files")
    parser.add_argument("--out", type=str | None, default=None, help="folder for the masks, of a segmentation run")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.inference.predictor import Specialists

    specialists = Specialists.load(options["run"])
    rows = specialists.predict_files(options["images"], masks=options["out"])
    if options["json"]:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        shown = f"{row['label']} ({row['confidence']:.1%})" if "label" in row else f"mask {row['mask']}"
        print(f"{row['image']}: {shown}, member {row['member']}{'' if row['accepted'] else ', rejected'}")
    return 0

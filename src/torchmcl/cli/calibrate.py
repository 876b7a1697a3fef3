"""Set from what confidence on a trained run answers, by its own validation split."""

import json
from pathlib import Path
from typing import Any


def add_arguments(parser: Any) -> None:
    """Which run, and what is promised."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("--coverage", type=float | None, default=None, help="accept this part of the examples: 0.95")
    parser.add_argument("--max_error", type=float | None, default=None, help="accept all that keep this error: 0.01")
    parser.add_argument(
        "--temperature", action="store_true", help="fit a temperature, so that confidence means what it says"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import calibrate_run

    asked = {name: options[name] for name in ("coverage", "max_error", "temperature")}
    found = calibrate_run(Path(options["run"]), **asked)
    if options["json"]:
        print(json.dumps(found, indent=1))
        return 0
    print(
        f"{found['run']}: answers from a confidence of {found['threshold']:.4f} on, at temperature "
        f"{found['temperature']:.3g}. Of {found['examples']} validation examples {found['coverage']:.2f} % are "
        f"accepted, with an error of {found['accepted_error']:.2f} %; of all, {found['error']:.2f} %."
    )
    return 0

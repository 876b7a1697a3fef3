"""Calibrate a trained run on its validation split: set the confidence below which predictions are rejected."""

import json
from pathlib import Path
from typing import Any

from torchmcl.cli.options import add_option


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run, the target and the output format."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    add_option(parser, "coverage", "fraction of examples to accept, e.g. 0.95", float)
    add_option(parser, "max_error", "maximum error rate among the accepted examples, e.g. 0.01", float)
    add_option(parser, "temperature", "also fit a softmax temperature (temperature scaling)", bool)
    add_option(parser, "json", "print JSON", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import calibrate_run

    targets = {name: options[name] for name in ("coverage", "max_error", "temperature")}
    result = calibrate_run(Path(options["run"]), **targets)
    if options["json"]:
        print(json.dumps(result, indent=1))
        return 0
    print(
        f"{result['run']} accepts predictions with a confidence of at least {result['threshold']:.4f} (temperature "
        f"{result['temperature']:.3g}). On {result['examples']} validation examples, the coverage is "
        f"{result['coverage']:.2f} %, the error of accepted examples is {result['accepted_error']:.2f} %, "
        f"and the error of all examples is {result['error']:.2f} %."
    )
    return 0

"""Calibrate a trained run on its validation split: the thresholds for accepted answers, or a density."""

import json
from pathlib import Path
from typing import Any, Literal

from torchmcl._utils.console import say
from torchmcl.cli.options import add_option


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run, the target and the output format."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    add_option(parser, "coverage", "fraction of examples to accept, e.g. 0.95", float)
    add_option(parser, "max_error", "maximum error rate among the accepted examples, e.g. 0.01", float)
    about = "fraction of examples that count as claimed by a member, with an auxiliary class (default: 0.99)"
    add_option(parser, "claim_coverage", about, float)
    add_option(parser, "temperature", "also fit a softmax temperature (temperature scaling)", bool)
    about = "for regression: voronoi (kernels on Voronoi cells, by default) or mixture (one EM step)"
    add_option(parser, "density", about, Literal["voronoi", "mixture"])
    add_option(parser, "json", "print JSON", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import calibrate_run

    targets = {name: options[name] for name in ("coverage", "max_error", "claim_coverage", "temperature", "density")}
    result = calibrate_run(Path(options["run"]), **targets)
    if options["json"]:
        print(json.dumps(result, indent=1))
        return 0
    if "kernel" in result:
        deviations = result["spread"] if result["bandwidth"] is None else [result["bandwidth"]]
        numbers = " ".join(f"{value:.4g}" for value in deviations)
        say(
            f"{result['run']} has the density {result['kernel']}, with the deviation {numbers} in standard deviations "
            f"of the targets. On {result['examples']} validation examples, the NLL is {result['nll']:.4f}."
        )
        return 0
    claimed = result.get("claim_threshold")
    claim = "" if claimed is None else f" and a claim of at least {claimed:.4f}"
    members = ", a temperature and an auxiliary bias per member" if result.get("members_calibrated") else ""
    say(
        f"{result['run']} accepts predictions with a confidence of at least {result['threshold']:.4f}{claim} "
        f"(temperature {result['temperature']:.3g}{members}). On {result['examples']} validation examples, the "
        f"coverage is {result['coverage']:.2f} %, the error of accepted examples is {result['accepted_error']:.2f} %, "
        f"and the error of all examples is {result['error']:.2f} %."
    )
    return 0

"""Train a router that predicts which members own an example, for predict and evaluate with --query."""

import json
from pathlib import Path
from typing import Any

from torchmcl._utils.console import say
from torchmcl.cli.options import add_option


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run, the router and the output format."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    add_option(parser, "width", "width of the router: channels of its first convolution, or units / 8", int, 16)
    add_option(parser, "epochs", "passes over the training split of the run", int, 10)
    add_option(parser, "learning_rate", "highest learning rate", float, 0.005)
    add_option(parser, "seed", "seed of the initial weights and the order of the examples", int, 0)
    add_option(parser, "json", "print JSON", bool)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.routing_evaluation import route_run

    names = ("width", "epochs", "learning_rate", "seed")
    result = route_run(Path(options["run"]), **{name: options[name] for name in names})
    if options["json"]:
        print(json.dumps(result, indent=1))
        return 0
    found = ", ".join(f"{n}: {100 - missed:.1f} %" for n, missed in enumerate(result["missed"], start=1))
    say(
        f"{result['run']} has a router of {result['parameters']} weights. On {result['examples']} {result['split']} "
        f"examples, an owner of the class is among this number of most likely members: {found}."
    )
    return 0

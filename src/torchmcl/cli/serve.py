"""Explore a trained run in the browser: view predictions for examples, inspect members and read study results."""

from contextlib import suppress
from typing import Any

from torchmcl.cli.options import add_option


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run, the address and the access control."""
    parser.add_argument("run", type=str, nargs="+", help="folder of a trained run, or two runs to show side by side")
    add_option(parser, "port", "port to listen on; 0 chooses a free port", int, 7860)
    add_option(parser, "host", "address to listen on; 0.0.0.0 listens on all interfaces", str, "127.0.0.1")
    add_option(parser, "auth", "login that is required: USER:PASSWORD, or a file with one USER:PASSWORD per line")
    add_option(parser, "results", "folder of study results", str, "results")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.explorer.serve import serve

    with suppress(KeyboardInterrupt):
        serve(options.pop("run"), **options)
    return 0

"""Look at a trained run in the browser: ask it about pictures, see its members, read the studies."""

from typing import Any


def add_arguments(parser: Any) -> None:
    """Which run, where, for whom."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("--port", type=int, default=7860, help="0: any that is free")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="this machine alone; 0.0.0.0: whoever reaches it")
    parser.add_argument("--auth", type=str | None, default=None, help="USER:PASSWORD, or a file with a line for each")
    parser.add_argument("--results", type=str, default="results", help="folder of the studies' results")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.explorer.serve import serve as show

    run = options.pop("run")
    try:
        show(run, **options)
    except KeyboardInterrupt:
        return 0
    return 0

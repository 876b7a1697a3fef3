"""Write one self-contained page on trained runs, compared with each other where there are several."""

from typing import Any

from torchmcl.cli.options import add_runs, looked


def add_arguments(parser: Any) -> None:
    """Which runs, on which data, into which file."""
    add_runs(parser)
    parser.add_argument("-o", "--out", type=str, default="report.html", help="the file to write")
    parser.add_argument("--limit", type=int | None, default=None, help="ask about so many examples of each set at most")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl import reporting

    path = reporting.write(options["runs"], options["out"], **looked(options))
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, a page that needs nothing else. Open it in a browser.")
    return 0

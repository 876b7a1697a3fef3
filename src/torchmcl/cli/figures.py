"""Write every figure of trained runs into a folder, for a paper."""

from typing import Any

from torchmcl.cli.options import add_runs, looked


def add_arguments(parser: Any) -> None:
    """Which runs, on which data, into which folder."""
    add_runs(parser)
    parser.add_argument("-o", "--out", type=str, default="figures", help="the folder to write into")
    parser.add_argument("--format", type=str, default="pdf", help="pdf, svg or png")
    parser.add_argument("--limit", type=int | None, default=None, help="ask about so many examples of each set at most")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import run_evaluation
    from torchmcl.analysis.figures.catalogue import draw

    evaluations = [run_evaluation(run, **looked(options)) for run in options["runs"]]
    for path in draw(evaluations, options["out"], kind=options["format"]):
        print(path)
    return 0

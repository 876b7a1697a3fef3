"""Write figures of trained runs to files, for example for a paper."""

from typing import Any

from torchmcl.cli.options import add_runs, evaluation_options


def add_arguments(parser: Any) -> None:
    """Add the arguments for the runs, the data and the output folder."""
    add_runs(parser, limit=True)
    parser.add_argument("-o", "--out", type=str, default="figures", help="folder to write to")
    parser.add_argument("--format", type=str, default="pdf", help="file format: pdf, svg or png")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.analysis.evaluation import run_evaluation
    from torchmcl.analysis.figures.catalogue import draw

    evaluations = [run_evaluation(run, **evaluation_options(options)) for run in options["runs"]]
    for path in draw(evaluations, options["out"], kind=options["format"]):
        print(path)
    return 0

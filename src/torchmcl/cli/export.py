"""Export a trained run to ONNX or torch.export, and check that the exported model gives the same outputs as PyTorch."""

from pathlib import Path
from typing import Any

from torchmcl._utils.console import say
from torchmcl.cli.options import add_option, add_query


def add_arguments(parser: Any) -> None:
    """Add the arguments for the run and the output file."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument(
        "file", type=str, help="file to write: NAME.onnx, or NAME.pt2 for torch.export; a folder with --query"
    )
    add_option(parser, "quantize", "quantize to 8 bits and report the change in error (.onnx only)", bool)
    add_query(parser)


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    if options["query"] is not None or options["budget"] is not None:
        result = routed(options)
    else:
        from torchmcl.inference.export import export_run

        result = export_run(Path(options["run"]), Path(options["file"]), quantize=options["quantize"])
    sizes, size = ", ".join(map(str, result["batches"])), f"{result['path']} ({result['bytes'] / 1e6:.2f} MB)"
    say(
        f"{'The graph before quantization' if options['quantize'] else size} gives the same outputs as PyTorch for "
        f"batches of size {sizes} (largest difference {result['difference']:.1e})."
    )
    if options["quantize"]:
        form = ".2f" if result["unit"] == "%" else ".4g"
        say(
            f"{size} has weights of 8 bits and gives other outputs: the size "
            f"changed from {result['bytes_before'] / 1e6:.2f} to {result['bytes'] / 1e6:.2f} MB, and "
            f"the error on {result['examples']} test examples changed from {result['error_before']:{form}} to "
            f"{result['error']:{form}} {result['unit']}."
        )
    return 0


def routed(options: dict[str, Any]) -> dict[str, Any]:
    """Export a run to a folder of graphs that query only the likely owners."""
    from torchmcl.errors import UsageError
    from torchmcl.inference.export_routed import export_routed
    from torchmcl.inference.predictor import Specialists

    if options["quantize"]:
        raise UsageError("Routed export does not quantize. Omit --quantize or --query.")
    specialists = Specialists.load(Path(options["run"]))
    return export_routed(specialists, options["file"], query=options["query"], budget=options["budget"])

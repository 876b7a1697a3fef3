"""Write a trained run as one graph, model.onnx or model.pt2, once it is found to answer the same."""

from pathlib import Path
from typing import Any


def add_arguments(parser: Any) -> None:
    """Which run, into which file."""
    parser.add_argument("run", type=str, help="folder of a trained run")
    parser.add_argument("file", type=str, help="model.onnx, or model.pt2 for torch.export")
    parser.add_argument("--quantize", action="store_true", help="8 bits, with the change in error; .onnx only")


def run(options: dict[str, Any]) -> int:
    """Run the command."""
    from torchmcl.inference.export import export_run

    found = export_run(Path(options["run"]), Path(options["file"]), quantize=options["quantize"])
    sizes = ", ".join(map(str, found["batches"]))
    print(
        f"{found['path']}: {found['bytes'] / 1e6:.2f} MB, equal to eager at batches of {sizes} "
        f"(largest difference {found['difference']:.1e})"
    )
    if options["quantize"]:
        print(
            f"8 bits: {found['bytes_before'] / 1e6:.2f} to {found['bytes'] / 1e6:.2f} MB, error on {found['examples']} "
            f"test examples {found['error_before']:.2f} to {found['error']:.2f} %"
        )
    return 0

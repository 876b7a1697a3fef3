"""Export of a model to one file that runs without torchmcl: ONNX, or the .pt2 format of `torch.export`."""

import importlib.util
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl import networks
from torchmcl._utils import atomic
from torchmcl._utils.logs import muted
from torchmcl.data import preprocess
from torchmcl.errors import UsageError
from torchmcl.inference.export_outputs import outputs_of
from torchmcl.inference.inputs import batches, labelled_batches
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.data_config import load_run_data

BATCH_SIZES = (1, 3, 17)  # the batch sizes at which the exported graph is compared with the model
TOLERANCE = 1e-5
PRETRAINED_TOLERANCE = 1e-3  # in deep networks, rounding adds up to differences of about 1e-4
DYNAMIC_SHAPES = ({0: torch.export.Dim("batch", min=1)},)
CALIBRATION_EXAMPLES = 256  # the maximum number of training examples that determine the ranges of 8-bit values

Runner = Callable[[Tensor], Mapping[str, Tensor]]


class Graph(nn.Module):
    """A complete model as one module: preprocessing, members, combiner and, for classes, the rejection threshold.

    Its outputs depend on the task and are named in `names`. For classes, they are `label` (B, …), `probabilities` (B,
    C, …), the probabilities of the `members` (M, B, C, …), the members' `auxiliary` probability (M, B, …), which is 0
    without an auxiliary class, the strongest `claim` (B, …), which is 1 without it, `claimed` (B, …) and `accepted`
    (B,). For continuous targets, they are `hypotheses` (M, B, D), `scores` (M, B) and `mean` (B, D), in their units.
    """

    def __init__(self, specialists: Specialists) -> None:
        super().__init__()
        self.specialists = specialists
        self.ensemble = specialists.ensemble
        self.outputs = outputs_of(specialists.method.task)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.outputs.names

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs for a batch of raw examples (B, …)."""
        answer = self.specialists.postprocess(self.ensemble(self.specialists.prepare(x)))
        return self.outputs.of(answer, self.specialists)


def export(specialists: Specialists, path: str | Path, *, quantize: Any = None, test: Any = None) -> dict[str, Any]:
    """Export a model to PATH.onnx or PATH.pt2.

    The graph takes `images` (B, C, H, W) or `rows` (B, D) of the model's input type, uint8 or float32, with any batch
    size B, and returns the outputs of `Graph`. Before the file is written, the graph is compared with the model on
    batches of several sizes.

    Args:
        specialists: the model
        path: the file to write; its extension selects the format
        quantize: representative examples, in any form that `predict` accepts, to quantize an ONNX graph to 8 bits
        test: labelled examples, in any form that `calibrate` accepts, for the error before and after quantization

    Returns:
        A dictionary with the `path`, the file size in `bytes`, the batch sizes of the comparison in `batches` and the
        largest `difference` between outputs; numbers to predict are compared in standard deviations of the targets.
        Quantization adds `bytes_before`, and `test` then adds `error_before` and `error` in percent, or the RMSE of
        numbers to predict, and the `unit`.

    Raises:
        UsageError: if the format is unknown, the network cannot be traced, or the graph differs from the model.

    >>> specialists = Specialists.from_modules([nn.Linear(4, 2)], ["cat", "dog"], shape=(4,))
    >>> export(specialists, Path(tempfile.mkdtemp()) / "model.pt2")["batches"]
    [1, 3, 17]
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"Cannot export to {path}: unknown format. Use the extension {' or '.join(FORMATS)}.")
    if quantize is not None and path.suffix != ".onnx":
        raise UsageError(f"Cannot quantize {path}: only ONNX graphs can be quantized. Use the extension .onnx.")
    convert, load = FORMATS[path.suffix]
    specialists = deepcopy(specialists).to("cpu")
    content = convert(graph := Graph(specialists).eval().requires_grad_(False))
    result: dict[str, Any] = {"path": str(path), "batches": list(BATCH_SIZES)}
    result["difference"] = compare(graph, load(content))
    if quantize is not None:
        original, content = content, quantize_onnx(content, specialists, quantize)
        result["bytes_before"] = len(original)
        if test is not None:
            result["error_before"] = error(load(original), specialists, test)
            result["error"] = error(load(content), specialists, test)
            result["unit"] = graph.outputs.unit
    atomic.make_folder(path.parent)
    atomic.write(path, content)
    return {**result, "bytes": len(content)}


def to_onnx(graph: Graph) -> bytes:
    """Convert a graph to ONNX, with the names of the classes in its metadata."""
    x, name = random_input(graph.specialists, 2), input_name(graph.specialists)
    return module_to_onnx(graph, x, name, graph.names, metadata(graph.specialists))


def missing_packages() -> list[str]:
    """Return the packages that ONNX export needs and that are not installed."""
    return [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]


def module_to_onnx(
    module: nn.Module, x: Tensor, name: str, outputs: Sequence[str], about: Mapping[str, str] | None = None
) -> bytes:
    """Convert a module to ONNX for any batch size, given an input (B, …), and the names of its input and outputs."""
    if missing := missing_packages():
        raise UsageError(f"ONNX export needs {' and '.join(missing)}. Try: pip install 'torchmcl[export]'")
    program = trace(module, x)
    with _quietly():
        names: dict[str, Any] = {"input_names": [name], "output_names": outputs}
        exported = torch.onnx.export(program, dynamo=True, dynamic_shapes=DYNAMIC_SHAPES, verbose=False, **names)
    assert exported is not None  # it is None only without dynamo
    model = exported.model_proto
    for key, value in (about or {}).items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def to_pt2(graph: Graph) -> bytes:
    """Convert a graph with `torch.export`, with the names of the classes in an extra file of the archive."""
    program, buffer = trace(graph, random_input(graph.specialists, 2)), io.BytesIO()
    with _quietly():
        torch.export.save(
            program, buffer, extra_files=metadata(graph.specialists) | {"outputs": json.dumps(graph.names)}
        )
    return buffer.getvalue()


@torch.no_grad()
def trace(module: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """Trace a module for any batch size, with an input (B, …)."""
    try:
        with _quietly():
            return torch.export.export(module, (x,), dynamic_shapes=DYNAMIC_SHAPES)
    except Exception as problem:  # tracing a network can raise any exception
        raise UsageError(
            f"Cannot export the network: torch.export cannot trace it for a variable batch size ({str(problem)[:200]})."
        ) from problem


def onnx_runner(content: bytes) -> Runner:
    """Return a function that computes the outputs of an ONNX graph with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name, outputs = session.get_inputs()[0].name, [one.name for one in session.get_outputs()]

    def run(x: Tensor) -> Mapping[str, Tensor]:
        values = session.run(outputs, {name: x.numpy()})
        return dict(zip(outputs, map(torch.from_numpy, values), strict=True))

    return run


def pt2_runner(content: bytes) -> Runner:
    """Return a function that computes the outputs of a .pt2 program."""
    files = {"outputs": ""}
    with _quietly():
        program = torch.export.load(io.BytesIO(content), extra_files=files).module()
    names = json.loads(files["outputs"])

    @torch.no_grad()
    def run(x: Tensor) -> Mapping[str, Tensor]:
        return dict(zip(names, program(x), strict=True))

    return run


@torch.no_grad()
def compare(graph: Graph, run: Runner) -> float:
    """Return the largest difference between the outputs of a graph and of its exported form.

    Raises:
        UsageError: if the exported form fails, or if its outputs differ by more than the tolerance.
    """
    worst = 0.0
    pretrained = networks.is_pretrained(graph.specialists.model_config.network or "")
    tolerance = PRETRAINED_TOLERANCE if pretrained else TOLERANCE
    for size in BATCH_SIZES:
        x = random_input(graph.specialists, size)
        expected = dict(zip(graph.names, graph(x), strict=True))
        try:
            got = run(x)
        except Exception as problem:  # a graph for only one batch size can raise any exception
            raise UsageError(
                f"The exported graph fails on a batch of size {size}: {str(problem)[:200]}. Nothing was written."
            ) from problem
        off, same = graph.outputs.difference(expected, got, graph.specialists, tolerance)
        worst = max(worst, off)
        if not same or not worst <= tolerance:
            raise UsageError(
                f"The exported graph and the model give different outputs for a batch of size {size} "
                f"(largest difference {off:.2g}). Nothing was written."
            )
    return worst


def quantize_onnx(content: bytes, specialists: Specialists, examples: Any) -> bytes:
    """Quantize convolutions and matrix products in an ONNX graph to 8 bits; `examples` determine the value ranges."""
    import onnx
    from onnxruntime import quantization

    name = input_name(specialists)
    inputs = ({name: batch.numpy()} for batch in batches(examples, specialists.model_config, 32))

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(inputs, None)

    with tempfile.TemporaryDirectory() as folder, _quietly():
        path, model = Path(folder) / "model.onnx", onnx.load_from_string(content)
        kinds = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
        # ONNX Runtime has no product of batches of matrices, the layers of all members, with one scale per channel.
        stacked = {one.name for one in model.graph.initializer if len(one.dims) > 2}
        products = {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input}
        each = not stacked & products
        quantization.quantize_static(model, str(path), Reader(), per_channel=each, op_types_to_quantize=kinds)
        return path.read_bytes()


def export_run(run: Path, path: Path, *, quantize: bool = False) -> dict[str, Any]:
    """Export a run. A quantized graph is calibrated on the run's training examples and evaluated on its test set."""
    specialists = Specialists.load(run)
    if not quantize:
        return export(specialists, path)
    _, data = load_run_data(run, "train", "test")
    sample = data.train.subset(torch.arange(0, len(data.train), -(-len(data.train) // CALIBRATION_EXAMPLES)))
    return {**export(specialists, path, quantize=sample, test=data.test), "examples": len(data.test)}


def error(run: Runner, specialists: Specialists, examples: Any) -> float:
    """Return the error of an exported graph on labelled examples, in the unit of its outputs."""
    labelled = labelled_batches(examples, specialists.model_config, specialists.batch_size)
    return outputs_of(specialists.method.task).error([(run(x), y) for x, y in labelled])


def random_input(specialists: Specialists, size: int) -> Tensor:
    """Return a reproducible batch of random examples like those of the model's input, (size, …).

    With the preprocessing "normalize", they have its mean and deviation. Rounding errors of a network grow with its
    inputs, so that far outside of this range, they would exceed the tolerance.
    """
    model_config, generator = specialists.model_config, torch.Generator().manual_seed(size)
    if model_config.dtype == "uint8":
        return torch.randint(256, (size, *model_config.shape), dtype=torch.uint8, generator=generator)
    x = torch.randn(size, *model_config.shape, generator=generator)
    return preprocess.denormalize(model_config.preprocess, x)


def input_name(specialists: Specialists) -> str:
    """Return the name of the graph's input."""
    return "images" if len(specialists.model_config.shape) == 3 else "rows"


def metadata(specialists: Specialists) -> dict[str, str]:
    """Return the model configuration and the names of the classes as JSON, to be stored with the graph."""
    return {"torchmcl": json.dumps(specialists.model_config.as_dict()), "classes": json.dumps(specialists.classes)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings that the exporters issue about their own code and about optional libraries."""
    loggers = map(logging.getLogger, ("torch.onnx", "torch.export", "root", "onnxscript"))
    with warnings.catch_warnings(), muted(*loggers, level=logging.ERROR):
        warnings.simplefilter("ignore")
        yield


FORMATS = {".onnx": (to_onnx, onnx_runner), ".pt2": (to_pt2, pt2_runner)}

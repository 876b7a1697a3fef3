"""A model as one file that needs no torchmcl: ONNX, or torch.export's .pt2."""

import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchmcl._utils import atomic
from torchmcl.errors import UsageError
from torchmcl.inference.inputs import batches, pairs
from torchmcl.inference.predictor import Specialists
from torchmcl.serialization.data_config import of_run
from torchmcl.structures.output import per_example
from torchmcl.tasks.labels import percent

OUTPUTS = ("label", "probabilities", "members", "auxiliary", "accepted")
SIZES = (1, 3, 17)  # of batches that are compared
NEAR = 1e-5
ANY_BATCH = ({0: torch.export.Dim("batch", min=1)},)
TYPICAL = 256  # training examples that set the ranges of 8 bits

Runner = Callable[[Tensor], Mapping[str, Tensor]]


class Graph(nn.Module):
    """The whole way from examples as they were read to an answer: preprocessing, members, combiner, threshold.

    `label` (B, …), `probabilities` (B, C, …), each member's, `members` (M, B, C, …), its `auxiliary` (M, B, …), 0
    where the method has none, and whether the answer is `accepted` (B,).
    """

    def __init__(self, specialists: Specialists) -> None:
        super().__init__()
        self.specialists = specialists
        self.ensemble = specialists.ensemble

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, …) as it was read -> `OUTPUTS`."""
        answer = self.specialists.postprocess(self.ensemble(self.specialists.prepare(x)))
        real = answer.members[:, :, : len(self.specialists.classes)]
        own = self.specialists.method.auxiliary
        auxiliary = answer.members[:, :, -1] if own else torch.zeros_like(answer.members[:, :, 0])
        return answer.label, answer.probabilities, real, auxiliary, answer.accepted


def export(specialists: Specialists, path: str | Path, *, quantize: Any = None, test: Any = None) -> dict[str, Any]:
    """Write a model as PATH.onnx or PATH.pt2, once its answers to batches of several sizes are found to be the same.

    Input `images` (B, C, H, W) uint8 or `rows` (B, D) float32, of any B; outputs as `Graph` names them. With
    `quantize`, typical examples in any form that `predict` takes, an ONNX graph is then brought to 8 bits, and with
    `test`, labelled examples in any form that `calibrate` takes, its error is measured, before and after.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise UsageError(f"Expected a file {' or '.join(FORMATS)} to export to, got {path}.")
    if quantize is not None and path.suffix != ".onnx":
        raise UsageError(f"Expected a file .onnx to quantise, got {path}.")
    write, runner = FORMATS[path.suffix]
    specialists = deepcopy(specialists).to("cpu")
    content = write(graph := Graph(specialists).eval().requires_grad_(False))
    found: dict[str, Any] = {"path": str(path), "batches": list(SIZES), "difference": compare(graph, runner(content))}
    if quantize is not None:
        plain, content = content, quantized(content, specialists, quantize)
        found["bytes_before"] = len(plain)
        if test is not None:
            found["error_before"], found["error"] = (
                error(runner(each), specialists, test) for each in (plain, content)
            )
    atomic.make_folder(path.parent)
    atomic.write(path, content)
    return {**found, "bytes": len(content)}


def as_onnx(graph: Graph) -> bytes:
    """The graph in ONNX, the names of its classes among its metadata."""
    _require("onnx", "onnxscript", "onnxruntime")
    program = traced(graph)
    with _quietly():
        found = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[input_name(graph.specialists)],
            output_names=OUTPUTS,
            dynamic_shapes=ANY_BATCH,
            verbose=False,
        )
    assert found is not None  # it is, with dynamo
    model = found.model_proto
    for key, value in about(graph.specialists).items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def as_pt2(graph: Graph) -> bytes:
    """The graph by torch.export, the names of its classes in a file beside it."""
    program, buffer = traced(graph), io.BytesIO()
    with _quietly():
        torch.export.save(program, buffer, extra_files=about(graph.specialists))
    return buffer.getvalue()


@torch.no_grad()
def traced(graph: Graph) -> torch.export.ExportedProgram:
    """The graph as operations on a batch of any size."""
    try:
        with _quietly():
            return torch.export.export(graph, (example(graph.specialists, 2),), dynamic_shapes=ANY_BATCH)
    except Exception as problem:  # whatever a network does that cannot be followed
        reason = " ".join(str(problem).split())[:200]
        raise UsageError(f"Expected a network that torch.export follows at any batch size, got: {reason}") from problem


def onnx_runner(content: bytes) -> Runner:
    """(B, …) -> outputs by name, computed by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> Mapping[str, Tensor]:
        found = session.run(list(OUTPUTS), {name: x.numpy()})
        return dict(zip(OUTPUTS, map(torch.from_numpy, found), strict=True))

    return run


def pt2_runner(content: bytes) -> Runner:
    """(B, …) -> outputs by name, computed by the exported program."""
    with _quietly():
        program = torch.export.load(io.BytesIO(content)).module()

    @torch.no_grad()
    def run(x: Tensor) -> Mapping[str, Tensor]:
        return dict(zip(OUTPUTS, program(x), strict=True))

    return run


@torch.no_grad()
def compare(graph: Graph, run: Runner) -> float:
    """The largest difference between what a graph and its exported form say; an error where it is more than rounding.

    Of labels and acceptance, those count that are not within rounding of being otherwise.
    """
    worst = 0.0
    threshold = graph.specialists.model_config.rejection.threshold
    for size in SIZES:
        x = example(graph.specialists, size)
        expected = dict(zip(OUTPUTS, graph(x), strict=True))
        try:
            got = run(x)
        except Exception as problem:  # whatever the runtime raises where a graph was made for one size alone
            reason = " ".join(str(problem).split())[:200]
            raise UsageError(
                f"Expected an exported graph that takes a batch of {size}, got: {reason}. Nothing was written."
            ) from problem
        off = max(float((expected[name] - got[name]).abs().max()) for name in ("probabilities", "members", "auxiliary"))
        first, second = expected["probabilities"].topk(2, dim=1).values.unbind(1)
        clear = {"label": first - second > NEAR, "accepted": (per_example(first) - threshold).abs() > NEAR}
        same = all(bool(((expected[name] == got[name]) | ~clear[name]).all()) for name in clear)
        worst = max(worst, off)
        if not same or not worst <= NEAR:
            raise UsageError(
                f"Expected the exported graph to answer as the model does, got other answers to a batch of {size} "
                f"(off by {off:.2g}). Nothing was written."
            )
    return worst


def quantized(content: bytes, specialists: Specialists, examples: Any) -> bytes:
    """An ONNX graph whose convolutions and matrix products are of 8 bits, in ranges that typical examples span."""
    import onnx
    from onnxruntime import quantization

    name = input_name(specialists)
    few = ({name: batch.numpy()} for batch in batches(examples, specialists.model_config, 32))

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(few, None)

    with tempfile.TemporaryDirectory() as folder, _quietly():
        path = Path(folder) / "model.onnx"
        quantization.quantize_static(
            onnx.load_from_string(content),
            str(path),
            Reader(),
            per_channel=True,
            op_types_to_quantize=["Conv", "ConvTranspose", "Gemm", "MatMul"],
        )
        return path.read_bytes()


def export_run(run: Path, path: Path, *, quantize: bool = False) -> dict[str, Any]:
    """Export a run; quantised, by some of its own training examples, and measured on its test set."""
    specialists = Specialists.load(run)
    if not quantize:
        return export(specialists, path)
    _, data = of_run(run, "train", "test")
    typical = data.train.subset(torch.arange(0, len(data.train), -(-len(data.train) // TYPICAL)))
    return {**export(specialists, path, quantize=typical, test=data.test), "examples": len(data.test)}


def error(run: Runner, specialists: Specialists, examples: Any) -> float:
    """Percent of the labels, or of the pixels, that an exported graph gets wrong."""
    wrong = [
        (run(x)["label"] != y).flatten() for x, y in pairs(examples, specialists.model_config, specialists.batch_size)
    ]
    return percent(torch.cat(wrong).double().mean())


def example(specialists: Specialists, size: int) -> Tensor:
    """Noise in the form of the model's input, (size, …), the same each time."""
    model_config, generator = specialists.model_config, torch.Generator().manual_seed(size)
    if model_config.dtype == "uint8":
        return torch.randint(256, (size, *model_config.shape), dtype=torch.uint8, generator=generator)
    return torch.randn(size, *model_config.shape, generator=generator)


def input_name(specialists: Specialists) -> str:
    """What the graph calls its input."""
    return "images" if len(specialists.model_config.shape) == 3 else "rows"


def about(specialists: Specialists) -> dict[str, str]:
    """What travels with the graph for people."""
    return {"torchmcl": json.dumps(specialists.model_config.as_dict()), "classes": json.dumps(specialists.classes)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Exporters warn of their own parts and of libraries that are not needed."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "root", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _require(*names: str) -> None:
    from importlib.util import find_spec

    if missing := [name for name in names if find_spec(name) is None]:
        raise UsageError(f"Expected {' and '.join(missing)} for ONNX, not installed. pip install 'torchmcl[export]'.")


FORMATS = {".onnx": (as_onnx, onnx_runner), ".pt2": (as_pt2, pt2_runner)}

"""Export of a model with a router to a folder of ONNX graphs and a driver, which query only the likely owners.

The router and each member are graphs of their own, because each member receives a different number of examples, which
can be zero. In one graph without branches, every example would pass through all members.
"""

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchmcl import networks
from torchmcl._utils import atomic
from torchmcl.ensemble.exchange import NoExchange
from torchmcl.ensemble.router import router_inputs
from torchmcl.errors import UsageError
from torchmcl.inference import export as exporting
from torchmcl.inference import routed_driver
from torchmcl.inference.answers import answer_of
from torchmcl.inference.predictor import Specialists
from torchmcl.inference.routing import RoutedEnsemble
from torchmcl.structures.output import EnsembleOutput

ANSWER = ("label", "probabilities", "claim", "claimed", "accepted", "member")
DRIVER = "routed.py"


class RouterGraph(nn.Module):
    """Preprocessing, the layers before the members' own ones, and the router.

    The outputs for raw examples (B, …) are the probability that each member owns each example, (B, M), and the inputs
    (B, …) of the members' own layers: one for all members if they are the same, or M of them.
    """

    def __init__(self, specialists: Specialists, routed: RoutedEnsemble) -> None:
        super().__init__()
        self.specialists, self.ensemble, self.router = specialists, routed.ensemble, routed.router

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the probabilities of the owners, and the inputs of the members."""
        inputs = router_inputs(self.ensemble, self.specialists.prepare(x))
        same = all(h is inputs[0] for h in inputs)
        return self.router(inputs).T, *(inputs[:1] if same else inputs)


class MemberGraph(nn.Module):
    """The layers of one member; they map their inputs (B, …) to calibrated logits (B, C)."""

    def __init__(self, routed: RoutedEnsemble, member: int) -> None:
        super().__init__()
        self.ensemble, self.member = routed.ensemble, member
        self.has_stem = isinstance(routed.ensemble.exchange, NoExchange)
        own = slice(member, member + 1)
        one = {name: getattr(routed.rejection, name)[own] for name in ("member_temperatures", "auxiliary_bias")}
        self.rejection = replace(routed.rejection, **one)

    def forward(self, h: Tensor) -> Tensor:
        """Return the logits (B, C)."""
        features = self.ensemble.stems[self.member](h) if self.has_stem else h
        logits = self.ensemble.forward_member(self.member, features, h)
        return self.rejection.calibrated(logits[None]).logits[0]


class AnswerGraph(nn.Module):
    """The answer for the calibrated logits (B, n, C) of n queried members; its outputs are named in `ANSWER`."""

    def __init__(self, routed: RoutedEnsemble) -> None:
        super().__init__()
        self.method = routed.method
        self.rejection = replace(routed.rejection, member_temperatures=(), auxiliary_bias=())  # already applied

    def forward(self, logits: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs; the claim is 1 without an auxiliary class, and `member` is a position from 0 to n - 1."""
        output = EnsembleOutput(logits.transpose(0, 1))
        answer = answer_of(self.method.task, self.method, output, self.rejection)
        claim = torch.ones_like(answer.confidence) if answer.claim is None else answer.claim
        return answer.label, answer.probabilities, claim, answer.claimed, answer.accepted, answer.member


def export_routed(
    specialists: Specialists, folder: str | Path, *, query: int | None, budget: int | None = None
) -> dict[str, Any]:
    """Export a model with a router to a folder of ONNX graphs, with a driver that needs only numpy and onnxruntime.

    The files are `router.onnx`, one graph per member, one graph of the answer per number of queried members, the
    driver `routed.py`, and `routed.json`, which the driver reads. Each graph is compared with the model on batches of
    several sizes before anything is written.

    Args:
        specialists: the model, with a router
        folder: the folder to write
        query: number of most likely owners to query per example, less than the number of members
        budget: largest number of members to query if all queried members answer "not mine"; by default, twice `query`

    Returns:
        A dictionary with the `path`, the size of all files in `bytes`, the batch sizes of the comparison in `batches`
        and the largest `difference` between outputs.

    Raises:
        UsageError: if the model has no router or a gate, if there is nothing to route, or if a graph cannot be
            exported or differs from the model.
    """
    specialists, folder = deepcopy(specialists).to("cpu"), Path(folder)
    if folder.suffix in exporting.FORMATS:
        raise UsageError(f"Routed export writes a folder, not the file {folder}. Omit the extension {folder.suffix}.")
    routed = specialists.routed(query, budget)
    if routed is None:
        raise UsageError(f"All {query} members would be queried. Export without query, or pass a smaller number.")
    if routed.ensemble.gate is not None:
        raise UsageError(f"Routed export does not support {routed.method.name}, whose members have a gate. Omit query.")
    deep = networks.is_pretrained(specialists.model_config.network or "")
    tolerance = exporting.PRETRAINED_TOLERANCE if deep else exporting.TOLERANCE
    contents, worst = {}, 0.0
    for name, graph, inputs, outputs in graphs(specialists, routed.eval().requires_grad_(False)):
        content = exporting.module_to_onnx(graph.eval(), inputs[0][:2], "x", outputs)
        worst = max(worst, compare(graph, content, inputs, outputs, tolerance))
        contents[f"{name}.onnx"] = content
    about: dict[str, Any] = {"members": routed.method.members, "classes": specialists.classes}
    about |= {"query": routed.query.first, "budget": routed.query.budget}
    contents["routed.json"] = (json.dumps(about, indent=1) + "\n").encode()
    contents[DRIVER] = Path(routed_driver.__file__).read_bytes()
    atomic.make_folder(folder)
    for file, content in contents.items():
        atomic.write(folder / file, content)
    size = sum(map(len, contents.values()))
    return {"path": str(folder), "batches": list(exporting.BATCH_SIZES), "difference": worst, "bytes": size}


def graphs(
    specialists: Specialists, routed: RoutedEnsemble
) -> Iterator[tuple[str, nn.Module, list[Tensor], Sequence[str]]]:
    """Yield the name of each graph, the graph, batches of its input, and the names of its outputs."""
    raw = [exporting.random_input(specialists, size) for size in (2, *exporting.BATCH_SIZES)]
    graph = RouterGraph(specialists, routed)
    with torch.no_grad():
        found = [graph(x) for x in raw]
        yield "router", graph, raw, ("owners", *(f"features-{n}" for n in range(len(found[0]) - 1)))
        logits = []
        for m in range(routed.method.members):
            member, at = MemberGraph(routed, m), 1 + m if len(found[0]) > 2 else 1
            inputs = [outputs[at].contiguous() for outputs in found]
            yield f"member-{m}", member, inputs, ("logits",)
            logits.append([member(h) for h in inputs])
        for n in range(routed.query.first, routed.query.budget + 1):
            together = [torch.stack(each, 1) for each in zip(*logits[:n], strict=True)]
            yield f"answer-{n}", AnswerGraph(routed), together, ANSWER


@torch.no_grad()
def compare(
    graph: nn.Module, content: bytes, inputs: Sequence[Tensor], names: Sequence[str], tolerance: float
) -> float:
    """Return the largest difference between the numbers that a graph and its ONNX form compute.

    Labels and decisions, which follow from these numbers, can differ by rounding and are not compared.
    """
    run, worst = exporting.onnx_runner(content), 0.0
    for x in inputs:
        values = graph(x)
        expected = dict(zip(names, [values] if isinstance(values, Tensor) else values, strict=True))
        try:
            got = run(x)
        except Exception as problem:  # a graph for only one batch size can raise any exception
            raise UsageError(f"A graph fails on a batch of size {len(x)}: {str(problem)[:200]}.") from problem
        for name, value in expected.items():
            if value.is_floating_point():
                scale = value.abs().amax().clamp_min(1)  # logits and features are not bounded
                off = float(((value - got[name]).abs() / scale).max())
                if not off <= tolerance:
                    raise UsageError(
                        f"A graph and the model give different {name} for a batch of size {len(x)} (relative "
                        f"difference {off:.2g}). Nothing was written."
                    )
                worst = max(worst, off)
    return worst

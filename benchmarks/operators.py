"""The time of a profiled step by part of the step and kind of operator."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

# The first match with the name of the operator in torch's profiler counts.
KINDS = (
    ("convolution", ("conv", "mkldnn", "onednn")),
    ("normalisation", ("batch_norm", "native_norm", "layer_norm")),
    ("optimiser", ("_foreach", "optimizer", "_fused_sgd", "addcdiv")),
    ("matrix product", ("mm", "linear", "matmul", "einsum")),
    ("pooling", ("pool",)),
    ("softmax and loss", ("softmax", "nll_loss", "cross_entropy")),
    ("copies", ("copy_", "clone", "contiguous", "_to_copy", "aten::to", "cat", "stack", "index", "gather", "select")),
    ("reductions", ("sum", "mean", "amax", "aten::max", "norm", "var")),
    ("memory", ("empty", "zeros", "fill_", "zero_", "resize", "as_strided", "view", "detach", "expand")),
)
PART = "part: "  # prefix of a record_function range that names a part of the step


def kind(name: str) -> str:
    """Return the kind of an operator; elementwise if nothing else matches.

    >>> kind("aten::mkldnn_convolution"), kind("aten::relu")
    ('convolution', 'elementwise')
    """
    return next((group for group, marks in KINDS if any(mark in name for mark in marks)), "elementwise")


def table(events: Iterable[Any]) -> dict[str, dict[str, float]]:
    """Return the seconds of a profile as {part: {kind of operator: seconds}}; time outside of parts is the engine's.

    The backward pass of the exchange counts as exchange; autograd gives both passes the same sequence number.
    """
    events = list(events)
    exchanged = {event.sequence_nr for event in events if event.sequence_nr >= 0 and "exchange" in parts_of(event)}
    found: dict[str, Counter] = {}
    for event in events:
        if event.name.startswith(PART) or event.self_cpu_time_total <= 0:
            continue
        part = (parts_of(event) or ["engine"])[0]
        if part == "backward" and any(number in exchanged for number in numbers_of(event)):
            part = "exchange"
        found.setdefault(part, Counter())[kind(event.name)] += event.self_cpu_time_total * 1e-6
    for event in events:  # Python's own time in a part
        if event.name.startswith(PART):
            found.setdefault(event.name.removeprefix(PART), Counter())["Python"] += event.self_cpu_time_total * 1e-6
    return {part: dict(kinds) for part, kinds in found.items()}


def parts_of(event: Any) -> list[str]:
    """Return the named parts around an event, innermost first."""
    parts = []
    while event is not None:
        if event.name.startswith(PART):
            parts.append(event.name.removeprefix(PART))
        event = event.cpu_parent
    return parts


def numbers_of(event: Any) -> list[int]:
    """Return the autograd sequence numbers of an event and of the events around it."""
    numbers = []
    while event is not None:
        numbers.append(event.sequence_nr)
        event = event.cpu_parent
    return numbers

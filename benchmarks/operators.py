"""Where a profiled step spends its time: which part of it asked, and which kind of operator worked."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

# The first that matches the operator's name. Names as torch's profiler has them.
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
PART = "part: "  # of a record_function range that names a part of the step


def kind(name: str) -> str:
    """What an operator is counted as; the rest is elementwise.

    >>> kind("aten::mkldnn_convolution"), kind("aten::relu")
    ('convolution', 'elementwise')
    """
    return next((group for group, marks in KINDS if any(mark in name for mark in marks)), "elementwise")


def table(events: Iterable[Any]) -> dict[str, dict[str, float]]:
    """Events of a profile -> seconds {part: {kind of operator: seconds}}; outside every named part is the engine.

    The backward of what the exchange did counts as the exchange's: autograd numbers both alike.
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
    """The named parts that an event lies in, the innermost first."""
    parts = []
    while event is not None:
        if event.name.startswith(PART):
            parts.append(event.name.removeprefix(PART))
        event = event.cpu_parent
    return parts


def numbers_of(event: Any) -> list[int]:
    """The autograd numbers of an event and of what it lies in."""
    numbers = []
    while event is not None:
        numbers.append(event.sequence_nr)
        event = event.cpu_parent
    return numbers

import re
from collections.abc import Mapping
from math import isfinite
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from torchmcl.errors import UsageError
from torchmcl.training.callbacks import KEPT, guarded

Value = float | None | list[float | None]  # None where it is not finite, which JSON has no number for
# What log.csv and metrics.json say already, and the column that a logger may add.
BUILT_IN = {
    *("epoch", "step", "phase", "loss", "learning_rate", "share", "oracle_error", "oracle_error_strict", "top1_error"),
    *("harmonic_mean", "members", "members_strict", "mean_iou", "disagreement", "ece", "nll", "brier", "examples"),
    *("median_confidence", "purity", "assigned", "epochs", "parameters", "warnings", "versions", "sets", "best_epoch"),
    *("counts", "flags", "validation", "extra"),
}


def named_metrics(given: Any) -> dict[str, Metric]:
    """Metrics by name, given as {name: metric}, as a list, where each has the name of its class, or as a collection.

    >>> from torchmetrics.classification import MulticlassF1Score
    >>> list(named_metrics([MulticlassF1Score(10)])), list(named_metrics({"f1": MulticlassF1Score(10)}))
    (['MulticlassF1Score'], ['f1'])
    """
    if isinstance(given, Mapping | MetricCollection):
        pairs = list(given.items())
    else:
        several = given if isinstance(given, list | tuple) else [] if given is None else [given]
        pairs = [(type(one).__name__, one) for one in several]
    found: dict[str, Metric] = {}
    for name, metric in pairs:
        if not isinstance(metric, Metric):
            raise UsageError(f"Expected metrics of torchmetrics, got {shown(metric)} for {name}. Pass an instance.")
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w/.-]*", name):
            raise UsageError(f"Expected names of metrics of letters, digits and _ / . -, got {shown(name)}.")
        if name in BUILT_IN or name.startswith("share_"):
            raise UsageError(f"Expected a name that is not a metric's of torchmcl already, got {name}. Choose another.")
        if name in found:
            raise UsageError(f"Expected metrics of different names, got {name} twice. Pass {{name: metric, …}}.")
        found[name] = metric
    return found


class ExtraMetrics:
    """The caller's metrics, copied for one training: given the combined probabilities and the targets, batch by batch.

    Over several processes each metric synchronises itself when it is computed.
    """

    def __init__(self, metrics: Mapping[str, Metric], device: torch.device) -> None:
        self.metrics: dict[str, Metric] = {}
        for name, metric in metrics.items():
            with guarded("metrics", f"clone or reset of {name}"):
                self.metrics[name] = metric.clone().to(device)
                self.metrics[name].reset()

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (B, C, …) and target (B, …)."""
        for name, metric in self.metrics.items():
            with guarded("metrics", f"update of {name}"):
                metric.update(probabilities, target)

    def compute(self) -> dict[str, Value]:
        """The value of each metric over the batches since the last call, a number or a list; of a dictionary, each.

        Raises:
            UsageError: if two values would have the same name, or one that of a built-in metric.
        """
        found: list[tuple[str, Value]] = []
        for name, metric in self.metrics.items():
            with guarded("metrics", f"compute of {name}"):
                value = metric.compute()
                metric.reset()
            several = value if isinstance(value, dict) else {"": value}
            found += [(name if key == "" else f"{name}_{key}", _plain(name, part)) for key, part in several.items()]
        _different_names(found)
        return dict(found)


def _different_names(found: list[tuple[str, Value]]) -> None:
    taken = set(BUILT_IN)
    for name, value in found:
        columns = {name, *_columns(name, value)}
        if twice := sorted(columns & taken):
            raise UsageError(f"Expected metrics whose values have names of their own, got {twice[0]} twice. {KEPT}")
        if re.search(r'[,"\r\n]', name):
            raise UsageError(f"Expected names of values that log.csv can hold, got {name!r}. {KEPT}")
        taken |= columns


def _columns(name: str, value: Any) -> dict[str, Any]:
    return {f"{name}_{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}


def _plain(name: str, value: Any) -> Value:
    try:
        numbers = torch.as_tensor(value).cpu().double()
    except (TypeError, ValueError, RuntimeError) as problem:
        raise UsageError(
            f"Expected a number or a vector from compute of the metric {name}, got {shown(value)}. {KEPT}"
        ) from problem
    listed = [round(number, 6) if isfinite(number) else None for number in numbers.flatten().tolist()]
    return listed if numbers.ndim else listed[0]


def flat(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of metrics for one row: component i of a vector as name_i, and nothing for what is not finite.

    >>> flat({"f1": 0.5, "recall": [0.25, None, 1.0], "auroc": None})
    {'f1': 0.5, 'recall_0': 0.25, 'recall_2': 1.0}
    """
    row: dict[str, Any] = {}
    for name, value in values.items():
        row |= _columns(name, value)
    return {name: value for name, value in row.items() if value is not None}

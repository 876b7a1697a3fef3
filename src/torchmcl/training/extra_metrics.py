import re
from collections.abc import Mapping
from math import isfinite
from reprlib import repr as shown
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from torchmcl.errors import UsageError
from torchmcl.training.callbacks import ADVICE, user_errors

METRIC_ADVICE = ADVICE.format(kind="metric")
Value = float | None | list[float | None]  # None replaces values that are not finite, which JSON cannot represent
# The names in log.csv and metrics.json, and `step`, a column that some loggers add.
BUILT_IN = {
    *("epoch", "step", "phase", "loss", "learning_rate", "share", "oracle_error", "oracle_error_strict", "top1_error"),
    *("harmonic_mean", "members", "members_strict", "mean_iou", "disagreement", "ece", "nll", "brier", "examples"),
    *("median_confidence", "purity", "assigned", "epochs", "parameters", "warnings", "versions", "sets", "best_epoch"),
    *("counts", "flags", "validation", "extra", "features", "oracle_rmse", "rmse", "crps", "energy_score", "emd"),
    *("winners", "oracle_loss", "ensemble_loss"),
}


def named_metrics(given: Any) -> dict[str, Metric]:
    """Return torchmetrics metrics by name.

    Args:
        given: A mapping {name: metric}, a `MetricCollection`, one metric or a list of metrics. A metric in a list is
            named after its class.

    Raises:
        UsageError: If an object is not a metric, or if a name is invalid, repeated or used by a built-in metric.

    >>> from torchmetrics.classification import MulticlassF1Score
    >>> list(named_metrics([MulticlassF1Score(10)])), list(named_metrics({"f1": MulticlassF1Score(10)}))
    (['MulticlassF1Score'], ['f1'])
    """
    if isinstance(given, Mapping | MetricCollection):
        pairs = list(given.items())
    else:
        several = given if isinstance(given, list | tuple) else [] if given is None else [given]
        pairs = [(type(metric).__name__, metric) for metric in several]
    metrics: dict[str, Metric] = {}
    for name, metric in pairs:
        if not isinstance(metric, Metric):
            raise UsageError(f"Expected a torchmetrics metric for {name}, got {shown(metric)}. Pass an instance.")
        if not isinstance(name, str) or not re.fullmatch(r"\w[\w/.-]*", name):
            raise UsageError(f"Expected only letters, digits and _ / . - in a metric's name, got {shown(name)}.")
        if name in BUILT_IN or name.startswith("share_"):
            raise UsageError(f"The name {name} belongs to a built-in metric. Choose another name.")
        if name in metrics:
            raise UsageError(f"Two metrics have the name {name}. Pass a dictionary {{name: metric, …}}.")
        metrics[name] = metric
    return metrics


class ExtraMetrics:
    """The user's metrics for one training run, updated with combined probabilities and targets batch by batch.

    The metrics are cloned. With several processes, each metric synchronises itself in `compute`.

    >>> from torchmetrics.classification import MulticlassAccuracy
    >>> extra = ExtraMetrics({"accuracy": MulticlassAccuracy(2)}, torch.device("cpu"))
    >>> extra.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
    >>> extra.compute()
    {'accuracy': 0.5}
    """

    def __init__(self, metrics: Mapping[str, Metric], device: torch.device) -> None:
        self.metrics: dict[str, Metric] = {}
        for name, metric in metrics.items():
            with user_errors("metric", f"clone or reset of {name}"):
                self.metrics[name] = metric.clone().to(device)
                self.metrics[name].reset()

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Add a batch: probabilities (B, C, …) and target (B, …)."""
        for name, metric in self.metrics.items():
            with user_errors("metric", f"update of {name}"):
                metric.update(probabilities, target)

    def compute(self) -> dict[str, Value]:
        """Compute each metric over the batches since the last call, then reset it.

        Returns:
            One number or list per metric. If a metric returns a dictionary, each key has its own entry NAME_KEY.

        Raises:
            UsageError: If two values have the same name, or a value has the name of a built-in metric.
        """
        values: list[tuple[str, Value]] = []
        for name, metric in self.metrics.items():
            with user_errors("metric", f"compute of {name}"):
                value = metric.compute()
                metric.reset()
            several = value if isinstance(value, dict) else {"": value}
            values += [(name if key == "" else f"{name}_{key}", _plain(name, part)) for key, part in several.items()]
        _check_value_names(values)
        return dict(values)


def _check_value_names(values: list[tuple[str, Value]]) -> None:
    used = set(BUILT_IN)
    for name, value in values:
        columns = {name, *_columns(name, value)}
        if repeated := sorted(columns & used):
            raise UsageError(f"The name {repeated[0]} of a metric's value is already in use. {METRIC_ADVICE}")
        if re.search(r'[,"\r\n]', name):
            raise UsageError(f"The name {name!r} of a metric's value cannot be a column of log.csv. {METRIC_ADVICE}")
        used |= columns


def _columns(name: str, value: Any) -> dict[str, Any]:
    return {f"{name}_{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}


def _plain(name: str, value: Any) -> Value:
    try:
        numbers = torch.as_tensor(value).cpu().double()
    except (TypeError, ValueError, RuntimeError) as problem:
        raise UsageError(
            f"Expected the metric {name} to compute a number or a vector, got {shown(value)}. {METRIC_ADVICE}"
        ) from problem
    listed = [round(number, 6) if isfinite(number) else None for number in numbers.flatten().tolist()]
    return listed if numbers.ndim else listed[0]


def flatten_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Return one number per column. Component i of a vector becomes name_i, and non-finite values are omitted.

    >>> flatten_values({"f1": 0.5, "recall": [0.25, None, 1.0], "auroc": None})
    {'f1': 0.5, 'recall_0': 0.25, 'recall_2': 1.0}
    """
    columns = [column for name, value in values.items() for column in _columns(name, value).items()]
    return {name: value for name, value in columns if value is not None}

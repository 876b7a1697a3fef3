"""Base classes of the stateful metrics. Each metric is defined next to the function that it computes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from torchmcl.errors import UsageError
from torchmcl.structures.output import to_float32


class BaseMetric(Metric):
    """An abstract metric that keeps the data type of its states if the module is converted to another type."""

    is_differentiable = False
    full_state_update = False

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        # torchmetrics protects states from `.half()`, but not from `.to(torch.bfloat16)`, which Lightning uses for
        # "bf16-true". In bfloat16, counts would not increase beyond 256.
        dtype = self._dtype
        super()._apply(fn, exclude_state=tuple(self._defaults))
        self._dtype = dtype
        for name, default in self._defaults.items():
            self._defaults[name] = self._to_device(default)
            setattr(self, name, self._to_device(getattr(self, name)))
        return self

    def _to_device(self, state: Any) -> Any:
        if isinstance(state, list):
            return [self._to_device(part) for part in state]
        unsupported = self.device.type == "mps" and state.dtype == torch.float64
        return state.to(self.device, torch.float32 if unsupported else state.dtype)


class SumMetric(BaseMetric):
    """An abstract metric that sums over batches in float64, so that rounding errors do not accumulate, or in int64."""

    total: Tensor

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float64, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("total", torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")
        # A MetricCollection merges metrics with equal states, such as OracleError and Top1Error after a batch without
        # errors. A state with a different name in each class prevents such a merge.
        self.add_state(type(self).__name__, torch.zeros(()), dist_reduce_fx="sum")

    def _add(self, sums: Tensor) -> None:
        if sums.shape != self.total.shape:  # the sums of one member would broadcast to all members
            expected, actual = self.total.shape[-1], sums.shape[-1]
            raise UsageError(f"Expected {expected} members, as passed to {type(self).__name__}, got {actual}.")
        # An in-place addition would fail if the state was reset under torch.inference_mode.
        self.total = self.total + sums.to(self.total.dtype)


class MeanMetric(SumMetric):
    """An abstract mean metric, stored as the sum of the values and the number of examples."""

    count: Tensor

    def __init__(self, *shape: int, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add_values(self, values: Tensor) -> None:
        """Add one value per example, (*shape, B, …)."""
        values = values.detach().flatten(self.total.ndim)
        self._add(values.sum(-1, dtype=self.total.dtype))
        self.count = self.count + values.shape[-1]

    def compute(self) -> Tensor:
        """Return the mean over all examples since the last reset, (*shape)."""
        return (self.total / self.count).float()


class ErrorMetric(MeanMetric):
    """An abstract metric for a mean error or loss; subclasses define `_values`, which returns one value per example."""

    higher_is_better = False
    _values: Callable[[Tensor, Tensor], Tensor]

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Add a batch; the arguments must have the shapes that the function of this metric expects."""
        self._add_values(self._values(probabilities, target))


class CurveMetric(BaseMetric):
    """An abstract metric that needs all examples at once; subclasses define `function` and its inputs, `states`."""

    states: tuple[str, ...]
    function: Callable[..., Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in self.states:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _append(self, name: str, values: Tensor) -> None:
        # The states are float32, because torchmetrics represents a process without data by an empty float32 tensor.
        getattr(self, name).append(to_float32(values.detach()))

    def _concatenated(self, name: str) -> Tensor:
        state: Tensor | list[Tensor] = getattr(self, name)  # a tensor once gathered from all processes
        return state if isinstance(state, Tensor) else torch.cat([torch.empty(0, device=self.device), *state])

    def compute(self) -> Tensor:
        """Return the value of `function` for all examples since the last reset."""
        return self.function(*map(self._concatenated, self.states)).float()

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from torchmcl.errors import UsageError
from torchmcl.structures.output import to_float32


class Shell(Metric):
    """What every metric that keeps state shares. Abstract."""

    is_differentiable = False
    full_state_update = False

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Follow the module to its device, but not to its precision.

        torchmetrics guards its states against `.half()`, not against `.to(torch.bfloat16)`, in which counting ends
        at 256 and which is how Lightning sets "bf16-true".
        """
        dtype = self._dtype
        super()._apply(fn, exclude_state=tuple(self._defaults))
        self._dtype = dtype
        for name, default in self._defaults.items():
            self._defaults[name] = self._placed(default)
            setattr(self, name, self._placed(getattr(self, name)))
        return self

    def _placed(self, state: Any) -> Any:
        if isinstance(state, list):
            return [self._placed(part) for part in state]
        narrow = self.device.type == "mps" and state.dtype == torch.float64  # which that device does not have
        return state.to(self.device, torch.float32 if narrow else state.dtype)


class Total(Shell):
    """A sum over batches, in float64 so that many small ones do not drift, or in integers. Abstract."""

    total: Tensor

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float64, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("total", torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")
        # A MetricCollection takes metrics of equal states for one and goes on with the first alone, as it would with
        # OracleError and Top1Error after a batch without mistakes. A state of its own name tells a class apart.
        self.add_state(type(self).__name__, torch.zeros(()), dist_reduce_fx="sum")

    def _add(self, sums: Tensor) -> None:
        """Add sums (*shape); one member's would broadcast to the totals of five, so the members are compared."""
        if sums.shape != self.total.shape:
            made, got = self.total.shape[-1], sums.shape[-1]
            raise UsageError(f"Expected {made} members, for which {type(self).__name__} was made, got {got}.")
        # Not in place, which would fail on a state that was reset under torch.inference_mode.
        self.total = self.total + sums.to(self.total.dtype)


class Average(Total):
    """A mean over examples: the sum of their values and their number. Abstract."""

    count: Tensor

    def __init__(self, *shape: int, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _average(self, values: Tensor) -> None:
        """Take in values (*shape, B, …), one for each example."""
        values = values.detach().flatten(self.total.ndim)
        self._add(values.sum(-1, dtype=self.total.dtype))
        self.count = self.count + values.shape[-1]

    def compute(self) -> Tensor:
        """Mean over all examples so far, (*shape)."""
        return (self.total / self.count).float()


class MemberAverage(Average):
    """A mean over examples for each member, (M,). Abstract."""

    def __init__(self, members: int, **options: Any) -> None:
        super().__init__(members, **options)


class Whole(Shell):
    """A curve, which has no running sum: keeps every example, and hands all of them to `function`. Abstract."""

    names: tuple[str, ...]
    function: Callable[..., Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in self.names:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _keep(self, name: str, values: Tensor) -> None:
        # float32 also because torchmetrics fills in for a process without data with an empty tensor of that type.
        getattr(self, name).append(to_float32(values.detach()))

    def _kept(self, name: str) -> Tensor:
        state: Tensor | list[Tensor] = getattr(self, name)  # a tensor once it is gathered from the processes
        return state if isinstance(state, Tensor) else torch.cat([torch.empty(0, device=self.device), *state])

    def compute(self) -> Tensor:
        """The pure function of all examples so far."""
        return self.function(*map(self._kept, self.names)).float()

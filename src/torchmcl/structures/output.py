from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.errors import UsageError


class EnsembleOutput(NamedTuple):
    """The outputs of an ensemble's members for a batch.

    Attributes:
        logits: (M, B, C, …), members first. The auxiliary class, if there is one, is the last of the C outputs.
        gate: (M, B), positive weights of the members that sum to 1 over M, or None for methods without a gate.

    >>> EnsembleOutput(torch.zeros(5, 2, 10)).gate is None
    True
    """

    logits: Tensor
    gate: Tensor | None = None

    @classmethod
    def of(cls, output: "EnsembleOutput | Tensor") -> "EnsembleOutput":
        """Check outputs or logits (M, B, C, …) and convert them to float32 or wider; raise UsageError for invalid ones.

        >>> EnsembleOutput.of(torch.zeros(5, 2, 10, dtype=torch.bfloat16)).logits.dtype
        torch.float32
        """
        logits, gate = output if isinstance(output, EnsembleOutput) else (output, None)
        if not isinstance(logits, Tensor) or logits.ndim < 3 or not logits.is_floating_point():
            raise UsageError(f"Expected floating point logits (M, B, C, …), members first, got {describe(logits)}.")
        if 0 in logits.shape:
            raise UsageError(f"Expected at least one member, example and output, got logits {describe(logits)}.")
        if gate is not None and gate.shape != logits.shape[:2]:
            raise UsageError(f"Expected a gate (M, B) = {tuple(logits.shape[:2])}, got {describe(gate)}.")
        return cls(to_float32(logits), None if gate is None else to_float32(gate))

    def require_gate(self) -> Tensor:
        """Return the gate (M, B); raise UsageError if there is none."""
        if self.gate is None:
            raise UsageError("The output has no gate. Build the ensemble for a method with a gate, such as 'vmcl'.")
        return self.gate

    def weighted(self, values: Tensor) -> Tensor:
        """Return the sum of `values` (M, B, …) over members, weighted by the gate, (B, …)."""
        gate = self.require_gate()
        return (gate.reshape(*gate.shape, *[1] * (values.ndim - 2)) * values).sum(0)


def to_float32(x: Tensor) -> Tensor:
    """Convert a tensor to float32 or keep its wider type, so that losses and probabilities have at least 32 bits."""
    return x if x.dtype == torch.float32 else x.to(torch.promote_types(x.dtype, torch.float32))


def describe(x: object) -> str:
    """Return the shape and type of a tensor for an error message.

    >>> describe(torch.zeros(2, 3)), describe([1, 2])
    ('(2, 3) of float32', 'list')
    """
    return f"{tuple(x.shape)} of {str(x.dtype)[6:]}" if isinstance(x, Tensor) else type(x).__name__


def per_example(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return the mean over each example's pixels, or over its `valid` (B, …) pixels: (B, …) -> (B,)."""
    if values.ndim == 1:
        return values
    values = to_float32(values).flatten(1)
    if valid is None:
        return values.mean(1)
    valid = valid.flatten(1).to(values.dtype)
    return (values * valid).sum(1) / valid.sum(1).clamp_min(1)

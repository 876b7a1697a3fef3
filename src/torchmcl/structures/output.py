from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.errors import UsageError


class EnsembleOutput(NamedTuple):
    """What the members of an ensemble say of a batch.

    `logits` (M, B, C, …) with the members first, the auxiliary class, where there is one, last among the C outputs and
    pixels behind; `gate` (M, B), where the method has one, is the weight of each member: positive, summing to 1 over M.

    >>> EnsembleOutput(torch.zeros(5, 2, 10)).gate is None
    True
    """

    logits: Tensor
    gate: Tensor | None = None

    @classmethod
    def of(cls, output: "EnsembleOutput | Tensor") -> "EnsembleOutput":
        """Take opinions or bare logits, check the axes, compute in float32 or wider.

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
        """The gate (M, B), or an error that says how to have one."""
        if self.gate is None:
            raise UsageError(
                "Expected opinions with a gate (M, B), got none. "
                "Build the ensemble for a method that has one: Ensemble.build('vmcl', …)."
            )
        return self.gate

    def weighted(self, values: Tensor) -> Tensor:
        """Sum of `values` (M, B, …) over the members, weighted by the gate -> (B, …)."""
        gate = self.require_gate()
        return (gate.reshape(*gate.shape, *[1] * (values.ndim - 2)) * values).sum(0)


def to_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in its own type where that is wider: losses and probabilities are never rounded to 16 bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def describe(x: object) -> str:
    """Shape and type, for an error message.

    >>> describe(torch.zeros(2, 3)), describe([1, 2])
    ('(2, 3) of float32', 'list')
    """
    return f"{tuple(x.shape)} of {str(x.dtype)[6:]}" if isinstance(x, Tensor) else type(x).__name__


def per_example(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """One number per example, (B, …) -> (B,): the mean over its pixels, or over those that are `valid` (B, …)."""
    if values.ndim == 1:
        return values
    values = to_float32(values).flatten(1)
    if valid is None:
        return values.mean(1)
    valid = valid.flatten(1).to(values.dtype)
    return (values * valid).sum(1) / valid.sum(1).clamp_min(1)

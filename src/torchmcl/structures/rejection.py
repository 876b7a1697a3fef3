from dataclasses import dataclass

from torch import Tensor

from torchmcl._utils.validation import validate_types
from torchmcl.errors import UsageError
from torchmcl.structures.output import per_example


@dataclass(frozen=True)
class Rejection:
    """A rule that accepts an answer if its confidence is at least `threshold`; by default, all answers are accepted.

    Args:
        threshold: The lowest accepted confidence.
        temperature: The number by which logits are divided before the confidence is computed.
        coverage: The fraction of validation examples that are accepted, if known.
        error: The error on the accepted validation examples, if known.

    >>> import torch
    >>> Rejection(threshold=0.5).accepts(torch.tensor([0.4, 0.5]))
    tensor([False,  True])
    """

    threshold: float = 0.0
    temperature: float = 1.0
    coverage: float | None = None
    error: float | None = None

    def __post_init__(self) -> None:
        validate_types(vars(self), Rejection)
        if not self.temperature > 0:
            raise UsageError(f"Expected temperature > 0, got {self.temperature}.")

    def accepts(self, confidence: Tensor) -> Tensor:
        """Return which predictions are accepted, (B, …) -> bool (B,); NaN is never accepted."""
        return per_example(confidence) >= self.threshold

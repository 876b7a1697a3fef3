from dataclasses import dataclass

from torch import Tensor

from torchmcl._utils.validation import validate_types
from torchmcl.errors import UsageError
from torchmcl.structures.output import per_example


@dataclass(frozen=True)
class Rejection:
    """An answer is accepted where its confidence at `temperature` is at least `threshold`: by default, always.

    `coverage` and `error` are what validation examples showed: the part accepted, and the error among those.

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
            raise UsageError(f"Expected a temperature above 0, got {self.temperature}.")

    def accepts(self, confidence: Tensor) -> Tensor:
        """(B, …) -> bool (B,); what is not a number is never accepted."""
        return per_example(confidence) >= self.threshold

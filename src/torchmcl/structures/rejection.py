from dataclasses import dataclass

import torch
from torch import Tensor

from torchmcl._utils.validation import validate_types
from torchmcl.errors import UsageError
from torchmcl.structures.output import EnsembleOutput, per_example


@dataclass(frozen=True)
class Rejection:
    """A rule that accepts an answer if its confidence is at least `threshold` and, once calibrated, it is claimed.

    By default, all answers are accepted.

    Args:
        threshold: The lowest accepted confidence.
        temperature: The number by which logits are divided before the confidence is computed.
        coverage: The fraction of validation examples that are accepted, if known.
        error: The error on the accepted validation examples, if known.
        claim_threshold: The lowest claim of an accepted answer, or None if claims are not calibrated. Without it, an
            example is claimed if a member gives the auxiliary class less than one half, and `accepts` ignores claims.
        member_temperatures: The number by which the logits of each member are divided, or () for none.
        auxiliary_bias: The number that is added to each member's logit of the auxiliary class afterwards, or ().

    >>> import torch
    >>> Rejection(threshold=0.5).accepts(torch.tensor([0.4, 0.5]))
    tensor([False,  True])
    """

    threshold: float = 0.0
    temperature: float = 1.0
    coverage: float | None = None
    error: float | None = None
    claim_threshold: float | None = None
    member_temperatures: tuple[float, ...] = ()
    auxiliary_bias: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("member_temperatures", "auxiliary_bias"):  # YAML and JSON store lists
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        validate_types(vars(self), Rejection)
        for temperature in (self.temperature, *self.member_temperatures):
            if not temperature > 0:
                raise UsageError(f"Expected temperature > 0, got {temperature}.")
        if len(self.member_temperatures) != len(self.auxiliary_bias):
            raise UsageError("Expected as many member_temperatures as values of auxiliary_bias.")

    @property
    def rescales(self) -> bool:
        """Whether calibration changes the probabilities, with a temperature or for each member."""
        return self.temperature != 1 or bool(self.member_temperatures)

    def calibrated(self, output: EnsembleOutput | Tensor) -> EnsembleOutput:
        """Return the members' outputs (M, B, C + 1, …) with their temperatures and auxiliary biases.

        >>> import torch
        >>> rejection = Rejection(member_temperatures=(2.0,), auxiliary_bias=(0.5,))
        >>> rejection.calibrated(torch.tensor([[[4.0, 1.0]]])).logits
        tensor([[[2., 1.]]])
        """
        output = EnsembleOutput.of(output)
        if not self.member_temperatures:
            return output
        shape = (-1, 1, 1, *[1] * (output.logits.ndim - 3))
        return with_members(
            output,
            output.logits.new_tensor(self.member_temperatures).reshape(shape),
            output.logits.new_tensor(self.auxiliary_bias).reshape(shape),
        )

    def claims(self, claim: Tensor) -> Tensor:
        """Return whether a claim, from 0 to 1, is strong enough: (B, …) -> bool (B, …); NaN never is.

        >>> import torch
        >>> Rejection().claims(torch.tensor([0.5, 0.6])), Rejection(claim_threshold=0.2).claims(torch.tensor([0.2]))
        (tensor([False,  True]), tensor([True]))
        """
        return claim > 0.5 if self.claim_threshold is None else claim >= self.claim_threshold

    def accepts(self, confidence: Tensor, claimed: Tensor | None = None) -> Tensor:
        """Return which predictions are accepted, (B, …) -> bool (B,); NaN is never accepted.

        Args:
            confidence: (B, …)
            claimed: which examples or pixels are claimed, bool (B, …); used only if claims are calibrated
        """
        accepted = per_example(confidence) >= self.threshold
        if claimed is None or self.claim_threshold is None:
            return accepted
        return accepted & claimed_examples(claimed)


def claimed_examples(claimed: Tensor) -> Tensor:
    """Return which examples are claimed, bool (B, …) -> (B,): an image is if at least half of its pixels are.

    >>> import torch
    >>> claimed_examples(torch.tensor([[True, False], [False, False]]))
    tensor([ True, False])
    """
    return claimed if claimed.ndim == 1 else per_example(claimed.float()) >= 0.5


def with_members(output: EnsembleOutput, temperature: Tensor, bias: Tensor) -> EnsembleOutput:
    """Divide logits (M, B, C + 1, …) by a temperature and add a bias to the auxiliary class, (M, 1, 1, …) each."""
    logits = output.logits / temperature
    return EnsembleOutput(torch.cat([logits[:, :, :-1], logits[:, :, -1:] + bias], dim=2), output.gate)

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.inference.rejection import tempered
from torchmcl.methods import Method
from torchmcl.structures.output import EnsembleOutput, per_example
from torchmcl.structures.rejection import Rejection


class Answer(NamedTuple):
    """What the ensemble says of a batch.

    `label` (B,) with its `confidence` (B,) and all `probabilities` (B, C, …); whether it is `accepted` (B,); the
    `member` (B,) that claims the example, and each one's probabilities, auxiliary class included: `members`
    (M, B, C or C + 1, …). In segmentation `label` and `confidence` are (B, …) too, and an image is accepted by the
    mean confidence of its pixels.
    """

    label: Tensor
    probabilities: Tensor
    confidence: Tensor
    accepted: Tensor
    member: Tensor
    members: Tensor

    def to(self, device: str | torch.device) -> "Answer":
        """The same on another device."""
        return Answer(*(part.to(device) for part in self))

    @classmethod
    def joined(cls, parts: Sequence["Answer"]) -> "Answer":
        """Answers to one batch after another as one."""
        axis = {"members": 1}
        return cls(
            *(
                torch.cat(values, axis.get(name, 0))
                for name, values in zip(cls._fields, zip(*parts, strict=True), strict=True)
            )
        )


def postprocess(method: Method, output: EnsembleOutput, rejection: Rejection) -> Answer:
    """Make an answer of what the members say, on the device where they said it."""
    combined = method.combine(output)
    probabilities = tempered(combined, rejection.temperature)
    confidence = probabilities.amax(1)
    members = EnsembleOutput.of(output).logits.softmax(2)
    return Answer(
        combined.argmax(1),
        probabilities,
        confidence,
        rejection.accepts(confidence),
        _claims(method, members, output.gate).argmax(0),
        members,
    )


def _claims(method: Method, members: Tensor, gate: Tensor | None) -> Tensor:
    """How much each member says that an example is its own, (M, B): not auxiliary, or chosen by the gate, or sure."""
    if method.auxiliary:
        claims = 1 - members[:, :, -1]
    elif gate is not None:
        claims = gate
    else:
        claims = members.amax(2)
    return torch.stack([per_example(own) for own in claims])

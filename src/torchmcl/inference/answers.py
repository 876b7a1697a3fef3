from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.inference.regression_answer import RegressionAnswer
from torchmcl.inference.rejection import apply_temperature
from torchmcl.methods import Method
from torchmcl.structures.output import EnsembleOutput, per_example
from torchmcl.structures.rejection import Rejection
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels, Regression


class Answer(NamedTuple):
    """The predictions of an ensemble for a batch.

    In segmentation, `label` and `confidence` have the shape (B, …), and an image is accepted if the mean confidence of
    its pixels reaches the threshold.

    Attributes:
        label: predicted class of each example (B,), an index into `Specialists.classes`
        probabilities: combined probabilities of the ensemble (B, C, …)
        confidence: highest combined probability (B,)
        accepted: whether the confidence reaches the rejection threshold (B,)
        member: index of the member with the lowest p(auxiliary), the highest gate weight or the highest confidence (B,)
        members: each member's probabilities (M, B, C or C + 1, …); the auxiliary class, if any, comes last
    """

    label: Tensor
    probabilities: Tensor
    confidence: Tensor
    accepted: Tensor
    member: Tensor
    members: Tensor

    def to(self, device: str | torch.device) -> "Answer":
        """Return a copy on another device."""
        return Answer(*(part.to(device) for part in self))

    def row(self, i: int, classes: Sequence[str]) -> dict[str, Any]:
        """Return the answer for one example as plain values, without the masks of segmentation."""
        row: dict[str, Any] = {"accepted": bool(self.accepted[i]), "member": int(self.member[i]) + 1}
        if self.label.ndim > 1:
            return row
        row |= {"label": classes[int(self.label[i])], "confidence": float(self.confidence[i])}
        return row | {"probabilities": dict(zip(classes, self.probabilities[i].tolist(), strict=True))}

    @classmethod
    def cat(cls, answers: Sequence["Answer"]) -> "Answer":
        """Concatenate the answers for successive batches."""
        columns = zip(cls._fields, zip(*answers, strict=True), strict=True)
        return cls(*(torch.cat(parts, dim=1 if name == "members" else 0) for name, parts in columns))


@singledispatch
def answer_of(task: Task, method: Method, output: EnsembleOutput, rejection: Rejection) -> Any:
    """Convert the members' outputs for a batch to an answer, on the device of the outputs.

    This is a generic function of the task; register a function for the class of a task of your own.
    """
    raise UsageError(
        f"Specialists cannot predict with the task {task.name}. Use specialists.forward(x), or register an answer with "
        "torchmcl.inference.answers.answer_of.register."
    )


@answer_of.register
def _(task: Regression, method: Method, output: EnsembleOutput, rejection: Rejection) -> RegressionAnswer:
    return RegressionAnswer.of(task, output)


@answer_of.register
def postprocess(task: Labels, method: Method, output: EnsembleOutput, rejection: Rejection) -> Answer:
    """Combine the members' outputs for a batch into an answer, on the device of the outputs."""
    combined = method.combine(output)
    probabilities = apply_temperature(combined, rejection.temperature)
    confidence = probabilities.amax(1)
    members = EnsembleOutput.of(output).logits.softmax(2)
    label, accepted = combined.argmax(1), rejection.accepts(confidence)
    member = _claims(method, members, output.gate).argmax(0)
    return Answer(label, probabilities, confidence, accepted, member, members)


def _claims(method: Method, members: Tensor, gate: Tensor | None) -> Tensor:
    """Return a score for each member and example (M, B): 1 - p(auxiliary), the gate weight, or the confidence."""
    if method.auxiliary:
        claims = 1 - members[:, :, -1]
    elif gate is not None:
        claims = gate
    else:
        claims = members.amax(2)
    return torch.stack([per_example(claim) for claim in claims])

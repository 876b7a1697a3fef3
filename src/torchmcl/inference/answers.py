from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.inference.regression_answer import RegressionAnswer
from torchmcl.inference.rejection import apply_temperature
from torchmcl.methods import Method
from torchmcl.structures.output import EnsembleOutput, per_example
from torchmcl.structures.rejection import Rejection, claimed_examples
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels, Regression

BY_MEMBER = ("members", "queried")  # the fields of an answer whose first axis is the member


@dataclass(frozen=True, eq=False)
class Answer:
    """The predictions of an ensemble for a batch.

    In segmentation, `label`, `confidence`, `claim` and `claimed` have the shape (B, …). An image is claimed if at least
    half of its pixels are, and it is accepted if the mean confidence of its pixels reaches the threshold.

    With K > 1, an example belongs to K members. The claim of the strongest one counts, because one expert suffices for
    an answer; `unseen_scores.kth_auxiliary` measures whether all K claim the example.

    Attributes:
        label: predicted class of each example (B,), an index into `Specialists.classes`
        probabilities: combined probabilities of the ensemble (B, C, …)
        confidence: highest combined probability (B,)
        claim: how strongly the strongest member claims the example, 1 - min_m p_m(auxiliary) (B,), or None for a method
            without an auxiliary class
        claimed: whether a member claims the example (B,): it gives the auxiliary class less than one half or, after
            calibration, the claim reaches the threshold; always true without an auxiliary class
        accepted: whether the confidence reaches the rejection threshold and, after calibration, the example is claimed
            (B,)
        member: index of the member with the lowest p(auxiliary), the highest gate weight or the highest confidence (B,)
        members: each member's probabilities (M, B, C or C + 1, …); the auxiliary class, if any, comes last; NaN for
            members that were not queried
        queried: which members were queried (M, B), or None if all were; see `inference.routing`
    """

    label: Tensor
    probabilities: Tensor
    confidence: Tensor
    claim: Tensor | None
    claimed: Tensor
    accepted: Tensor
    member: Tensor
    members: Tensor
    queried: Tensor | None = None

    def to(self, device: str | torch.device) -> "Answer":
        """Return a copy on another device."""
        parts: dict[str, Any] = {name: part if part is None else part.to(device) for name, part in vars(self).items()}
        return Answer(**parts)

    def row(self, i: int, classes: Sequence[str]) -> dict[str, Any]:
        """Return the answer for one example as plain values, without the masks of segmentation.

        For a mask, `claim` is the mean over the pixels, and `claimed_pixels` is the fraction that is claimed.
        """
        claim = None if self.claim is None else float(per_example(self.claim)[i])
        row: dict[str, Any] = {"claimed": bool(claimed_examples(self.claimed)[i]), "claim": claim}
        row |= {"accepted": bool(self.accepted[i]), "member": int(self.member[i])}
        if self.queried is not None:
            row["queried"] = self.queried[:, i].nonzero()[:, 0].tolist()
        if self.label.ndim > 1:
            return row | {"claimed_pixels": float(self.claimed[i].float().mean())}
        row |= {"label": classes[int(self.label[i])], "confidence": float(self.confidence[i])}
        return row | {"probabilities": dict(zip(classes, self.probabilities[i].tolist(), strict=True))}

    @classmethod
    def cat(cls, answers: Sequence["Answer"]) -> "Answer":
        """Concatenate the answers for successive batches."""
        columns: dict[str, Any] = dict.fromkeys(vars(answers[0]))
        for name in columns:
            parts = [getattr(answer, name) for answer in answers]
            if parts[0] is not None:
                columns[name] = torch.cat(parts, dim=1 if name in BY_MEMBER else 0)
        return cls(**columns)

    def subset(self, index: Tensor) -> "Answer":
        """Return the answers for the examples `index` (B,), in this order."""
        columns: dict[str, Any] = {
            name: part if part is None else part.index_select(1 if name in BY_MEMBER else 0, index)
            for name, part in vars(self).items()
        }
        return Answer(**columns)


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
    output = rejection.calibrated(output)
    combined = method.combine(output)
    probabilities = apply_temperature(combined, rejection.temperature)
    confidence, label = probabilities.amax(1), combined.argmax(1)
    members = output.logits.softmax(2)
    claim = strongest_claim(method, members)
    claimed = torch.ones_like(label, dtype=torch.bool) if claim is None else rejection.claims(claim)
    accepted = rejection.accepts(confidence, claimed)
    member = _claims(method, members, output.gate).argmax(0)
    return Answer(label, probabilities, confidence, claim, claimed, accepted, member, members)


def strongest_claim(method: Method, members: Tensor) -> Tensor | None:
    """Return the claim of the strongest member, 1 - min_m p_m(auxiliary): (M, B, C + 1, …) -> (B, …).

    >>> from torchmcl import methods
    >>> members = torch.tensor([[[0.75, 0.25]], [[0.1, 0.9]]])
    >>> strongest_claim(methods.build("amcl", members=2, classes=2), members)
    tensor([0.7500])
    """
    return 1 - members[:, :, -1].amin(0) if method.auxiliary else None


def _claims(method: Method, members: Tensor, gate: Tensor | None) -> Tensor:
    """Return a score for each member and example (M, B): 1 - p(auxiliary), the gate weight, or the confidence."""
    if method.auxiliary:
        claims = 1 - members[:, :, -1]
    elif gate is not None:
        claims = gate
    else:
        claims = members.amax(2)
    return torch.stack([per_example(claim) for claim in claims])

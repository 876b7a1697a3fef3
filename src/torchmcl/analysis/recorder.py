import torch
from torch import Tensor, nn

from torchmcl import metrics
from torchmcl.inference import unseen_scores
from torchmcl.inference.answers import Answer
from torchmcl.inference.predictor import Specialists
from torchmcl.structures.output import EnsembleOutput, per_example


class Recorder(nn.Module):
    """An ensemble that notes what it says of each example it is asked about, one number each; logits come once.

    With `target` (N, …), the truth of the examples in the order in which they will come, it notes too how right it is.
    """

    def __init__(self, specialists: Specialists, target: Tensor | None = None) -> None:
        super().__init__()
        self.specialists, self.ensemble, self.target = specialists, specialists.ensemble, target
        self.notes: list[dict[str, Tensor]] = []
        self.heard = 0

    def forward(self, x: Tensor) -> EnsembleOutput:
        """(B, …), prepared -> opinions."""
        output: EnsembleOutput = self.ensemble(x)
        answer = self.specialists.postprocess(output)
        scores = unseen_scores.MemberScores.of(output, answer.probabilities, self.specialists.method)
        note = {
            **unseen_scores.compute(scores),
            "confidence": per_example(answer.confidence),
            "member": answer.member,
        }
        if answer.label.ndim == 1:  # masks of a whole set are never held at once
            note["label"] = answer.label
        if scores.auxiliary is not None:
            on_top = (output.logits.argmax(2) == self.specialists.method.classes).float()
            note |= {"auxiliary": of_members(scores.auxiliary), "left": of_members(on_top)}
        if self.target is not None:
            target = self.target[self.heard : self.heard + len(x)].to(x.device)
            note |= judged(output.logits, answer, target, self.specialists.method.task.valid(target))
        self.heard += len(x)
        self.notes.append({name: value.cpu() for name, value in note.items()})
        return output

    def gathered(self, name: str) -> Tensor:
        """All that was noted under a name, (N,) or (N, M); `reliability` a batch, (batches, 3, 15)."""
        return torch.cat([note[name] for note in self.notes])

    @property
    def scores(self) -> list[str]:
        """The scores that the method allows."""
        return [name for name in unseen_scores.NAMES if name in self.notes[0]]


def judged(logits: Tensor, answer: Answer, target: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
    """How right members, with logits (M, B, C or C + 1, …), and their one answer are on the target (B, …).

    Only `valid` pixels, bool (B, …), count.

    Of pixels, their mean: `wrong` (B,); `errors` (B, M) over the real classes; `truth` (B,), the ensemble's probability
    of it, and `cross_entropy` (B, M), each member's; `reliability` (1, 3, 15), see `metrics.reliability`.
    """
    combined, known = answer.probabilities, target.long()
    known = known if valid is None else known.masked_fill(~valid, 0)
    each = logits.log_softmax(2).gather(2, known[:, None].expand(len(logits), -1, -1, *known.shape[1:]))[:, :, 0]
    wrong = metrics.members_wrong(logits[:, :, : combined.shape[1]], target)
    where = slice(None) if valid is None else valid
    seen = combined if valid is None else combined.movedim(1, -1)[where]
    return {
        "wrong": per_example((answer.label != target).double(), valid),
        "errors": of_members(wrong.float(), valid),
        "truth": per_example(combined.gather(1, known[:, None])[:, 0], valid),
        "cross_entropy": of_members(-each, valid),
        "reliability": metrics.reliability(seen, target[where])[None],
    }


def of_members(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """One number per member and example, (M, B, …) -> (B, M)."""
    return torch.stack([per_example(value, valid) for value in values], dim=1)

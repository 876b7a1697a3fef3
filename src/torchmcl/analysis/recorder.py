from collections.abc import Mapping

import torch
from torch import Tensor, nn

from torchmcl import metrics
from torchmcl.data.examples import Examples
from torchmcl.inference import feature_scores, unseen_scores
from torchmcl.inference.answers import Answer
from torchmcl.inference.feature_scores import UnseenScore
from torchmcl.inference.features import feature_loader
from torchmcl.inference.predictor import Specialists
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.structures.output import EnsembleOutput, per_example
from torchmcl.structures.rejection import claimed_examples


class Recorder(nn.Module):
    """An ensemble that records values for every example in its forward passes.

    Args:
        specialists: the trained ensemble
        target: the targets (N, …) of all examples in order; if given, errors are recorded too
        fitted: scores that need features, by name (see `feature_scores.fit_feature_scores`)
    """

    def __init__(
        self,
        specialists: Specialists,
        target: Tensor | None = None,
        fitted: Mapping[str, UnseenScore] | None = None,
    ) -> None:
        super().__init__()
        self.specialists, self.ensemble, self.target = specialists, specialists.ensemble, target
        self.fitted = dict(fitted or {})
        self.records: list[dict[str, Tensor]] = []
        self.position = 0

    def forward(self, x: Tensor) -> EnsembleOutput:
        """Return the members' outputs for a preprocessed batch (B, …) and record the values of its examples."""
        output: EnsembleOutput = self.ensemble(x)
        answer = self.specialists.postprocess(output)
        calibrated = self.specialists.model_config.rejection.calibrated(output)
        scores = unseen_scores.MemberScores.of(calibrated, answer.probabilities, self.specialists.method)
        record = unseen_scores.compute(scores)
        features = self.ensemble.features(x) if self.fitted else None
        record |= {name: score.score(features, scores) for name, score in self.fitted.items()}
        record |= {"confidence": per_example(answer.confidence), "member": answer.member}
        record["claimed"] = claimed_examples(answer.claimed)
        if answer.label.ndim == 1:  # masks are not recorded, because they may not fit in memory
            record["label"] = answer.label
            record["predicted"] = output.logits.argmax(2).T  # of each member, with the auxiliary class
        if scores.auxiliary is not None:
            is_auxiliary = (output.logits.argmax(2) == self.specialists.method.classes).float()
            record |= {"auxiliary": per_member(scores.auxiliary), "left": per_member(is_auxiliary)}
        if self.target is not None:
            target = self.target[self.position : self.position + len(x)].to(x.device)
            valid = self.specialists.method.task.valid(target)
            record |= errors(output.logits, answer, target, valid)
            if self.specialists.model_config.rejection.rescales:
                plain = self.specialists.method.combine(output)
                record["reliability_before"] = _reliability(plain, target, valid)
        self.position += len(x)
        self.records.append({name: value.cpu() for name, value in record.items()})
        return output

    def get(self, name: str) -> Tensor:
        """Return all values recorded under a name, (N,) or (N, M); for `reliability…`, (batches, 3, 15)."""
        return torch.cat([record[name] for record in self.records])

    @property
    def scores(self) -> list[str]:
        """The names of the recorded unseen-data scores."""
        return [name for name in feature_scores.NAMES if name in self.records[0]]


def record(
    specialists: Specialists,
    examples: Examples,
    target: Tensor | None = None,
    fitted: Mapping[str, UnseenScore] | None = None,
) -> Recorder:
    """Evaluate examples and return the recorded values; see `Recorder`."""
    recorder = Recorder(specialists, target, fitted)
    with feature_loader(specialists, examples) as loader:
        for _ in outputs(recorder, loader):
            pass
    return recorder


def errors(logits: Tensor, answer: Answer, target: Tensor, valid: Tensor | None = None) -> dict[str, Tensor]:
    """Compare logits (M, B, C or C + 1, …) and the ensemble's answer with the target (B, …).

    For masks, values are averaged over the pixels marked in `valid`, bool (B, …). The result has `wrong` (B,), the
    ensemble's error; `errors` (B, M), each member's error without the auxiliary class; `target_probability` (B,), the
    ensemble's probability of the target; `cross_entropy` (B, M) of each member; and `reliability` (1, 3, 15)
    (see `metrics.reliability`).
    """
    combined, known = answer.probabilities, target.long()
    known = known if valid is None else known.masked_fill(~valid, 0)
    index = known[:, None].expand(len(logits), -1, -1, *known.shape[1:])
    members_wrong = metrics.members_wrong(logits[:, :, : combined.shape[1]], target)
    return {
        "wrong": per_example((answer.label != target).double(), valid),
        "errors": per_member(members_wrong.float(), valid),
        "target_probability": per_example(combined.gather(1, known[:, None])[:, 0], valid),
        "cross_entropy": per_member(-logits.log_softmax(2).gather(2, index)[:, :, 0], valid),
        "reliability": _reliability(combined, target, valid),
    }


def _reliability(probabilities: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return metrics.reliability(probabilities, target)[None]
    return metrics.reliability(probabilities.movedim(1, -1)[valid], target[valid])[None]


def per_member(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Average values (M, B, …) over the valid pixels of each example -> (B, M)."""
    return torch.stack([per_example(value, valid) for value in values], dim=1)

from collections.abc import Callable
from dataclasses import dataclass

from torchmcl.analysis.run_evaluation import RunEvaluation

NONE = "–"  # noqa: RUF001


@dataclass(frozen=True)
class Measure:
    """One number of a run, what it means in a sentence, and whether less or more of it is better (-1, 1, or 0)."""

    name: str
    meaning: str
    value: Callable[[RunEvaluation], float | None]
    better: int = -1
    unit: str = "%"
    digits: int = 2

    def text(self, evaluation: RunEvaluation) -> str:
        """For a cell."""
        value = self.value(evaluation)
        return NONE if value is None else f"{value:,.{self.digits}f}{f' {self.unit}' if self.unit else ''}"

    def best(self, evaluations: list[RunEvaluation]) -> set[int]:
        """Which of several runs have the best value."""
        values = {
            at: value for at, evaluation in enumerate(evaluations) if (value := self.value(evaluation)) is not None
        }
        if not self.better or len(values) < 2 or len(set(values.values())) == 1:
            return set()
        best = max(values.values(), key=lambda value: self.better * value)
        return {at for at, value in values.items() if value == best}


def measured(name: str) -> Callable[[RunEvaluation], float | None]:
    """What `torchmcl evaluate` says under a name."""
    return lambda evaluation: evaluation.metrics.get(name)


def kept(name: str) -> Callable[[RunEvaluation], float | None]:
    """What the training left under a name."""
    return lambda evaluation: evaluation.kept.get(name)


def purity(evaluation: RunEvaluation) -> float | None:
    """Of the last epoch's assignments; None where everyone takes everything, which is neither pure nor mixed."""
    alike = evaluation.assigned is not None and bool((evaluation.assigned == evaluation.assigned[:, :1]).all())
    return None if alike else evaluation.kept.get("purity")


def calibration(evaluation: RunEvaluation) -> float:
    """Expected calibration error in percent, of masks over pixels."""
    count, confidence, right = evaluation.test.gathered("reliability").sum(0)
    return float(100 * (right - confidence).abs().sum() / count.sum())


def of_best_score(name: str) -> Callable[[RunEvaluation], float | None]:
    """Of the score that tells unseen data best."""
    return lambda evaluation: (
        evaluation.metrics["unseen"]["scores"][evaluation.metrics["unseen"]["best"]][name]
        if "unseen" in evaluation.metrics
        else None
    )


MEASURES = (
    Measure(
        "Top-1 error",
        "Percent of the test set that the ensemble's one answer has wrong (of masks: percent of the pixels).",
        measured("top1_error"),
    ),
    Measure(
        "Oracle error",
        "Percent that every member has wrong: what would be left if we always knew whom to ask.",
        measured("oracle_error"),
    ),
    Measure(
        "Strict oracle error",
        "The same, where a member that says “not mine” counts as wrong even if its second thought is right.",
        measured("oracle_error_strict"),
    ),
    Measure(
        "Harmonic mean",
        "Of oracle and top-1 error: low only if both are, and what the number of takers K is chosen by.",
        measured("harmonic_mean"),
    ),
    Measure(
        "Mean IoU", "Overlap of found and true areas, over classes: 100 is a perfect mask.", measured("mean_iou"), 1
    ),
    Measure(
        "Calibration error (ECE)",
        "How far confidence and accuracy are apart, on average: at 5, answers that are 90 % sure may be right 85 %.",
        calibration,
    ),
    Measure(
        "Negative log-likelihood",
        "How surprised the ensemble is by the truth; confident mistakes cost most.",
        measured("nll"),
        unit="",
        digits=3,
    ),
    Measure(
        "Brier score",
        "Squared distance of the probabilities from the truth, from 0 to 2.",
        measured("brier"),
        unit="",
        digits=3,
    ),
    Measure(
        "Area under risk and coverage (AURC)",
        "Mean error over all ways to accept only the surest answers: how much rejecting the rest helps.",
        measured("aurc"),
    ),
    Measure(
        "Disagreement",
        "How often two members answer differently: specialists differ on purpose, copies never do.",
        measured("disagreement"),
        0,
        digits=1,
    ),
    Measure(
        "Purity",
        "Of all assignments in the last epoch, the part that went to the members that take most of the class.",
        purity,
        0,
        digits=1,
    ),
    Measure(
        "AUROC, unseen data",
        "How well the best score tells data of other kinds from the test set: 50 is chance, 100 perfect.",
        of_best_score("auroc"),
        1,
    ),
    Measure(
        "FPR95, unseen data",
        "Percent of the test set that is lost where 95 % of the unseen data are found by that score.",
        of_best_score("fpr95"),
    ),
    Measure("Parameters", "Trained numbers, all members together.", kept("parameters"), 0, unit="", digits=0),
)

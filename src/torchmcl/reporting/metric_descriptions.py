from collections.abc import Callable
from dataclasses import dataclass

from torchmcl.analysis.run_evaluation import RunEvaluation

NONE = "–"  # noqa: RUF001

Value = Callable[[RunEvaluation], float | None]


@dataclass(frozen=True)
class MetricDescription:
    """A metric in the report, with its description."""

    name: str
    description: str
    value: Value  # returns None for runs without this metric
    direction: int = -1  # -1: lower is better, 1: higher is better, 0: neither
    template: str = "{:,.2f} %"

    def format(self, evaluation: RunEvaluation) -> str:
        """Return the value as text."""
        value = self.value(evaluation)
        return NONE if value is None else self.template.format(value)

    def best(self, evaluations: list[RunEvaluation]) -> set[int]:
        """Return the indices of the runs with the best value, or an empty set if all values are equal."""
        values = {i: value for i, run in enumerate(evaluations) if (value := self.value(run)) is not None}
        if not self.direction or len(values) < 2 or len(set(values.values())) == 1:
            return set()
        best = max(values.values(), key=lambda value: self.direction * value)
        return {i for i, value in values.items() if value == best}


def calibration_error(evaluation: RunEvaluation) -> float:
    """Return the expected calibration error in percent, computed over pixels for masks."""
    count, confidence, right = evaluation.test.get("reliability").sum(0)
    return float(100 * (right - confidence).abs().sum() / count.sum())


def _purity(evaluation: RunEvaluation) -> float | None:
    """Return the purity of the last epoch; None if all members took the same examples."""
    assigned = evaluation.assigned
    equal = assigned is not None and bool((assigned == assigned[:, :1]).all())
    return None if equal else evaluation.training_metrics.get("purity")


def _evaluated(name: str) -> Value:
    return lambda evaluation: evaluation.metrics.get(name)


def _of_best_score(name: str) -> Value:
    def value(evaluation: RunEvaluation) -> float | None:
        unseen = evaluation.metrics.get("unseen")
        return unseen["scores"][unseen["best"]][name] if unseen else None

    return value


METRICS = (
    MetricDescription(
        "Top-1 error",
        "Percentage of the test set on which the ensemble's answer is wrong; for masks, percentage of pixels.",
        _evaluated("top1_error"),
    ),
    MetricDescription(
        "Oracle error",
        "Percentage of the test set on which all members are wrong. The top-1 error would have this value if "
        "the best member were always chosen.",
        _evaluated("oracle_error"),
    ),
    MetricDescription(
        "Strict oracle error",
        "The oracle error if a member counts as wrong whenever the auxiliary class is its most probable output.",
        _evaluated("oracle_error_strict"),
    ),
    MetricDescription(
        "Harmonic mean",
        "Harmonic mean of the oracle error and the top-1 error. Studies use it to choose K, the number of members that "
        "take each example.",
        _evaluated("harmonic_mean"),
    ),
    MetricDescription(
        "Mean IoU",
        "Intersection over union of predicted and target regions, averaged over classes. 100 is perfect.",
        _evaluated("mean_iou"),
        1,
    ),
    MetricDescription(
        "Calibration error (ECE)",
        "Mean absolute difference between confidence and accuracy. For example, with an error of 5, predictions with a "
        "confidence of 90 % may be correct in 85 % of cases.",
        calibration_error,
    ),
    MetricDescription(
        "Negative log-likelihood",
        "Mean negative logarithm of the probability of the correct class. Confident mistakes increase it most.",
        _evaluated("nll"),
        template="{:,.3f}",
    ),
    MetricDescription(
        "Brier score",
        "Mean squared distance between the predicted probabilities and the one-hot label, from 0 (best) to 2.",
        _evaluated("brier"),
        template="{:,.3f}",
    ),
    MetricDescription(
        "Area under the risk-coverage curve (AURC)",
        "Error of accepted predictions, averaged over all confidence thresholds. A low value means that "
        "rejecting uncertain predictions helps.",
        _evaluated("aurc"),
    ),
    MetricDescription(
        "Disagreement",
        "Percentage of the test set on which two members make different predictions, averaged over all pairs.",
        _evaluated("disagreement"),
        0,
        "{:,.1f} %",
    ),
    MetricDescription(
        "Purity",
        "Percentage of the assignments in the last epoch in which an example went to one of the K members that took "
        "its class most often.",
        _purity,
        0,
        "{:,.1f} %",
    ),
    MetricDescription(
        "AUROC, unseen data",
        "How well the best score separates unseen data from the test set. 50 is chance, 100 is perfect.",
        _of_best_score("auroc"),
        1,
    ),
    MetricDescription(
        "FPR95, unseen data",
        "Percentage of the test set that is mistaken for unseen data if the threshold of the best score is set to "
        "detect 95 % of the unseen data.",
        _of_best_score("fpr95"),
    ),
    MetricDescription(
        "Parameters",
        "Total number of trained parameters in all members.",
        lambda evaluation: evaluation.training_metrics.get("parameters"),
        0,
        "{:,.0f}",
    ),
)

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchmcl.analysis.figures.catalogue import Evaluation
from torchmcl.analysis.regression_evaluation import RegressionEvaluation

NONE = "–"  # noqa: RUF001
NOT_CALIBRATED = "not calibrated"

Value = Callable[[Evaluation], float | None]


@dataclass(frozen=True)
class MetricDescription:
    """A metric in the report, with its description."""

    name: str
    description: str
    value: Value  # returns None for runs without this metric
    direction: int = -1  # -1: lower is better, 1: higher is better, 0: neither
    template: str = "{:,.2f} %"
    missing: str = NONE  # the text for a run that predicts classes but has no value

    def format(self, evaluation: Evaluation) -> str:
        """Return the value as text."""
        value = self.value(evaluation)
        if value is None:
            return NONE if isinstance(evaluation, RegressionEvaluation) else self.missing
        return self.template.format(value)

    def shown(self, evaluations: Sequence[Evaluation]) -> bool:
        """Return whether the metric says something about at least one run."""
        return any(self.format(evaluation) != NONE for evaluation in evaluations)

    def best(self, evaluations: Sequence[Evaluation]) -> set[int]:
        """Return the indices of the runs with the best value, or an empty set if all values are equal.

        A run whose top-1 error is far higher than that of another run is left out, because the oracle error of members
        that are overconfident on each other's classes says little.
        """
        values = {i: value for i, run in enumerate(evaluations) if (value := self.value(run)) is not None}
        if not self.direction or len(values) < 2 or len(set(values.values())) == 1:
            return set()
        best = max(values.values(), key=lambda value: self.direction * value)
        return {i for i, value in values.items() if value == best and not far_behind(evaluations[i], evaluations)}


def far_behind(evaluation: Evaluation, evaluations: Sequence[Evaluation]) -> bool:
    """Return whether a run's top-1 error exceeds the lowest of all runs by over 5 points and by over a half of it."""
    errors = [run.metrics["top1_error"] for run in evaluations if "top1_error" in run.metrics]
    if not errors or "top1_error" not in evaluation.metrics:
        return False
    return bool(evaluation.metrics["top1_error"] > min(errors) + max(5, min(errors) / 2))


def calibration_error(evaluation: Evaluation, recorded: str = "reliability") -> float | None:
    """Return the expected calibration error in percent, computed over pixels for masks; None without classes."""
    if isinstance(evaluation, RegressionEvaluation):
        return None
    count, confidence, right = evaluation.test.get(recorded).sum(0)
    return float(100 * (right - confidence).abs().sum() / count.sum())


def calibrated(evaluation: Evaluation) -> bool:
    """Return whether calibration changes the probabilities of a run."""
    return evaluation.specialists.model_config.rejection.rescales


def _error_before(evaluation: Evaluation) -> float | None:
    return calibration_error(evaluation, "reliability_before" if calibrated(evaluation) else "reliability")


def _error_after(evaluation: Evaluation) -> float | None:
    return calibration_error(evaluation) if calibrated(evaluation) else None


def _temperature(evaluation: Evaluation) -> float | None:
    return evaluation.specialists.model_config.rejection.temperature if calibrated(evaluation) else None


def _purity(evaluation: Evaluation) -> float | None:
    """Return the purity of the last epoch; None if all members took the same examples."""
    assigned = None if isinstance(evaluation, RegressionEvaluation) else evaluation.assigned
    equal = assigned is not None and bool((assigned == assigned[:, :1]).all())
    return None if equal else evaluation.training_metrics.get("purity")


def _evaluated(name: str) -> Value:
    return lambda evaluation: evaluation.metrics.get(name)


def _log_likelihood(*, continuous: bool) -> Value:
    def value(evaluation: Evaluation) -> float | None:
        matches = isinstance(evaluation, RegressionEvaluation) == continuous
        return evaluation.metrics.get("nll") if matches else None

    return value


def _of_constant(evaluation: Evaluation) -> float | None:
    if not isinstance(evaluation, RegressionEvaluation):
        return None
    _, target = evaluation.rows()
    return float(target.std(0, correction=0).square().mean().sqrt())


def _of_best_score(name: str) -> Value:
    def value(evaluation: Evaluation) -> float | None:
        unseen = evaluation.metrics.get("unseen")
        return unseen["scores"][unseen["best"]][name] if unseen else None

    return value


NUMBER = "{:,.4g}"  # for values in the units of the targets

METRICS = (
    MetricDescription(
        "Oracle RMSE",
        "Root mean squared error of the hypothesis closest to each target, in the units of the targets. More "
        "hypotheses lower it, so compare only runs with the same number of members.",
        _evaluated("oracle_rmse"),
        template=NUMBER,
    ),
    MetricDescription(
        "RMSE of the mean",
        "Root mean squared error of the mean of the hypotheses, weighted by their scores. If the targets have several "
        "modes, no single prediction can make it small.",
        _evaluated("rmse"),
        template=NUMBER,
    ),
    MetricDescription(
        "RMSE of a constant",
        "Root mean squared error of the mean of the test targets, which is their standard deviation, for comparison.",
        _of_constant,
        0,
        NUMBER,
    ),
    MetricDescription(
        "CRPS",
        "Continuous ranked probability score of the hypotheses with their scores, averaged over target values, in the "
        "units of the targets. For a single hypothesis, it is the mean absolute error.",
        _evaluated("crps"),
        template=NUMBER,
    ),
    MetricDescription(
        "Energy score",
        "The CRPS for vectors: it also judges whether the target values fit together.",
        _evaluated("energy_score"),
        template=NUMBER,
    ),
    MetricDescription(
        "Earth mover's distance",
        "Mean distance by which the hypotheses, weighted by their scores, have to move to become the targets.",
        _evaluated("emd"),
        template=NUMBER,
    ),
    MetricDescription(
        "Negative log-likelihood of the targets",
        "Mean negative logarithm of the density of the targets. The density is the mixture that the members predict, "
        "or consists of kernels on the Voronoi cells of the hypotheses. It depends on the units of the targets.",
        _log_likelihood(continuous=True),
        template="{:,.3f}",
    ),
    MetricDescription(
        "Unused hypotheses",
        "Number of hypotheses that are never the closest to a target of the test set.",
        lambda evaluation: (
            sum(share == 0 for share in evaluation.metrics["winners"]) if "winners" in evaluation.metrics else None
        ),
        template="{:.0f}",
    ),
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
        "ECE before calibration",
        "Expected calibration error without the temperature: the mean absolute difference between confidence and "
        "accuracy. For example, with an error of 5, predictions with a confidence of 90 % may be correct in 85 % of "
        "cases.",
        _error_before,
    ),
    MetricDescription(
        "ECE after calibration",
        "Expected calibration error with the temperature that “torchmcl calibrate RUN --temperature” fitted on the "
        "validation split.",
        _error_after,
        missing=NOT_CALIBRATED,
    ),
    MetricDescription(
        "Temperature",
        "Number by which the logarithms of the probabilities are divided: above 1, it lowers the confidence. The "
        "negative log-likelihood, the Brier score and the AURC of a calibrated run are computed with it.",
        _temperature,
        0,
        "{:,.3f}",
        NOT_CALIBRATED,
    ),
    MetricDescription(
        "Negative log-likelihood",
        "Mean negative logarithm of the probability of the correct class. Confident mistakes increase it most.",
        _log_likelihood(continuous=False),
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
        "Unclaimed",
        "Percentage of the test set that no member claims, although it belongs to known classes: every member predicts "
        "the auxiliary class with at least one half or, after calibration, its claim is below the threshold.",
        _evaluated("unclaimed"),
        template="{:,.1f} %",
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
        "its class or group most often.",
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

import re
import shlex
from collections.abc import Callable

import torch

from torchmcl import metrics
from torchmcl.analysis.figures.catalogue import Evaluation
from torchmcl.analysis.regression_evaluation import RegressionEvaluation
from torchmcl.analysis.run_evaluation import RunEvaluation
from torchmcl.errors import UsageError
from torchmcl.reporting.metric_descriptions import calibration_error
from torchmcl.training import guardrails

# Thresholds in percent.
MAX_ERROR_GAP, MAX_CALIBRATION_ERROR = 30, 10
MAX_AUXILIARY_OWN, MIN_AUXILIARY_OTHER, MIN_UNSEEN_AUROC = 99, 1, 60


def uneven_shares(evaluation: RunEvaluation) -> list[str]:
    """Warn about members that take no examples or all of them, and about a top-1 error far above the oracle error."""
    if evaluation.assigned is None:
        return []
    method = evaluation.specialists.method
    warnings = guardrails.check_shares(evaluation.assigned, method) + guardrails.check_metrics(
        evaluation.metrics, method
    )
    return [text.replace("this epoch", "the last epoch") for text in warnings]


def uncounted_classes(evaluation: RunEvaluation) -> list[str]:
    """Warn about classes that had no examples when the memory was fixed."""
    memory = evaluation.specialists.memory
    if memory is None or not memory.fixed or len(memory.counts) != len(evaluation.groups):
        return []
    return guardrails.check_counts(memory.counts, evaluation.groups)


def low_purity(evaluation: RunEvaluation) -> list[str]:
    """Warn about classes whose examples are spread over many members."""
    if evaluation.assigned is None or not evaluation.specialised or evaluation.k >= evaluation.members:
        return []
    purity = float(100 * metrics.purity(evaluation.assigned, evaluation.k))
    if purity >= 50 * (1 + evaluation.k / evaluation.members):
        return []
    return [
        f"Purity is {purity:.0f} %: the examples of a class are spread over many members, so members hardly "
        "specialise. Train longer, or use amcl, whose memory assigns each class to K members."
    ]


def unused_auxiliary(evaluation: RunEvaluation) -> list[str]:
    """Warn about members that hardly ever use the auxiliary class, or use it for their own classes."""
    if not evaluation.auxiliary or evaluation.own is None:
        return []
    left, warnings = 100 * evaluation.test.get("left"), []
    for m in range(evaluation.members):
        own = evaluation.own[:, m]
        on_own, on_other = left[own, m], left[~own, m]
        if len(on_own) and float(on_own.mean()) > MAX_AUXILIARY_OWN:
            warnings.append(
                f"Member {m + 1} assigns {on_own.mean():.0f} % of the examples of its own classes to the auxiliary "
                "class: it has not learned these classes. Train longer."
            )
        if len(on_other) and float(on_other.mean()) < MIN_AUXILIARY_OTHER:
            warnings.append(
                f"Member {m + 1} assigns only {on_other.mean():.1f} % of the examples of other classes to the "
                "auxiliary class, so it makes predictions for classes that it has not learned. Raise gamma, or train "
                "longer."
            )
    return warnings


def short_training(evaluation: RunEvaluation) -> list[str]:
    """Warn if the warm-up takes more than half of the epochs."""
    epochs = len(evaluation.history)
    if evaluation.specialists.memory is None or not epochs:
        return []
    try:
        after = evaluation.specialists.method.schedule_end(evaluation.config.get("epochs") or epochs)
    except UsageError:  # earlier versions allowed a warm-up longer than the run
        after = epochs
    if epochs - after >= after:
        return []
    return [f"Only {max(epochs - after, 0)} of {epochs} epochs followed the warm-up. Train longer."]


def miscalibration(evaluation: RunEvaluation) -> list[str]:
    """Warn if the calibration error is large."""
    error = calibration_error(evaluation)
    if error is None or error <= MAX_CALIBRATION_ERROR:
        return []
    command = f"torchmcl calibrate {shlex.quote(evaluation.run or 'RUN')} --temperature"
    return [f"Confidence differs from accuracy by {error:.1f} percentage points on average. Run: {command}"]


def undetected_unseen(evaluation: RunEvaluation) -> list[str]:
    """Warn if no score detects the unseen data."""
    unseen = evaluation.metrics.get("unseen")
    if unseen is None or (auroc := unseen["scores"][unseen["best"]]["auroc"]) >= MIN_UNSEEN_AUROC:
        return []
    data, best = unseen["data"], unseen["best"]
    return [f"Unseen data ({data}) is hardly detected: the best score, {best}, has an AUROC of {auroc:.1f}."]


def unused_hypotheses(evaluation: RegressionEvaluation) -> list[str]:
    """Warn about hypotheses that are never the closest to a target."""
    return guardrails.check_metrics(evaluation.metrics, evaluation.specialists.method)


def worse_than_the_mean(evaluation: RegressionEvaluation) -> list[str]:
    """Warn if a constant, the mean of the training targets, has a lower RMSE than the mean of the hypotheses."""
    _, target = evaluation.rows()
    mean = torch.tensor(evaluation.task.mean or (0.0,) * target.shape[1])
    constant = float((target - mean).square().mean().sqrt())
    if evaluation.metrics["rmse"] <= 1.02 * constant:
        return []
    return [
        f"The RMSE of the mean of the hypotheses, {evaluation.metrics['rmse']:.4g}, exceeds that of a constant, the "
        f"mean of the training targets, {constant:.4g}. Train longer, lower learning_rate, or use score=bce."
    ]


def partial_evaluation(evaluation: Evaluation) -> list[str]:
    """Warn if the run was evaluated on only part of the test set."""
    total, evaluated = evaluation.training_metrics.get("examples"), evaluation.metrics["examples"]
    if not total or evaluated >= total or evaluation.metrics["data"] != evaluation.config.get("data"):
        return []
    return [f"The run was evaluated on only {evaluated:,} of {total:,} test examples."]


CHECKS: dict[str, Callable[[RunEvaluation], list[str]]] = {
    "a member took no examples or over 95 % of the examples in the last epoch, or if the top-1 error exceeds the "
    f"oracle error by over {MAX_ERROR_GAP} points": uneven_shares,
    "a class had no examples when the memory was fixed": uncounted_classes,
    "purity is closer to chance (K/M, where K of M members take each example) than to 100 %": low_purity,
    f"a member assigns over {MAX_AUXILIARY_OWN} % of the examples of its own classes, or under "
    f"{MIN_AUXILIARY_OTHER} % of those of other classes, to the auxiliary class": unused_auxiliary,
    "the warm-up takes more than half of the epochs": short_training,
    f"the calibration error is over {MAX_CALIBRATION_ERROR} %": miscalibration,
    f"no score detects the unseen data with an AUROC of at least {MIN_UNSEEN_AUROC}": undetected_unseen,
    "the run was evaluated on only part of the test set": partial_evaluation,
}


REGRESSION_CHECKS: dict[str, Callable[..., list[str]]] = {
    "a hypothesis is never the closest to a target of the test set": unused_hypotheses,
    "the ensemble predicts the test set worse than the mean of the training targets": worse_than_the_mean,
    "the run was evaluated on only part of the test set": partial_evaluation,
}


def checks_of(evaluation: Evaluation) -> dict[str, Callable[..., list[str]]]:
    """Return the checks for a run that predicts classes, or for a run that predicts numbers."""
    return REGRESSION_CHECKS if isinstance(evaluation, RegressionEvaluation) else CHECKS


def diagnostics(evaluation: Evaluation) -> list[str]:
    """Return the warnings about a run, followed by further warnings from its training."""
    warnings = [text for check in checks_of(evaluation).values() for text in check(evaluation)]
    known = {_without_numbers(text) for text in warnings}
    earlier = [text for text in evaluation.training_metrics.get("warnings", []) if isinstance(text, str)]
    latest = {_without_numbers(text): text for text in earlier}  # the last of the texts that differ only in numbers
    return warnings + [f"During training: {text}" for key, text in latest.items() if key not in known]


def _without_numbers(text: str) -> str:
    return re.sub(r"[\d.,]+", "#", text.replace("this epoch", "the last epoch"))

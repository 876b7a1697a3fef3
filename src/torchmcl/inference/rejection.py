"""Rejection of uncertain predictions: thresholds on claim and confidence, and the temperature of the confidence."""

from dataclasses import replace
from math import ceil, exp, log

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.structures.output import describe, per_example, to_float32
from torchmcl.structures.rejection import Rejection, claimed_examples

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
PRIOR_DEVIATION = 0.5  # of the logarithm of a temperature
CLAIM_COVERAGE = 0.99  # the default fraction of the validation examples that are claimed


def apply_temperature(probabilities: Tensor, temperature: float) -> Tensor:
    """Return p(c)^(1/T) / sum_d p(d)^(1/T) = softmax(log p / T), with the shape of `probabilities`.

    This is temperature scaling (Guo et al. 2017), applied to the logarithm of the combined probabilities instead of to
    logits. It works with every combiner and never changes a label. T > 1 lowers the confidence, and T < 1 raises it.

    Args:
        probabilities: combined probabilities (B, C, …)
        temperature: T, above 0

    >>> apply_temperature(torch.tensor([[0.8, 0.2]]), 2.0)
    tensor([[0.6667, 0.3333]])
    """
    if temperature == 1:
        return probabilities
    return (_log(probabilities) / temperature).softmax(1)


def fit_temperature(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> float:
    """Return the most likely temperature in [0.05, 20], with a normal prior of log T (mean 0, deviation 0.5).

    Without the prior, T would be the lower bound if the ensemble makes no error on the validation examples, and one
    error on a test example would then cost more than all correct answers gain.

    Args:
        probabilities: combined probabilities of validation examples (B, C, …)
        target: labels (B, …)
        ignore_index: label of examples or pixels that are ignored

    >>> predicted = torch.tensor([[0.99, 0.01]] * 4000)  # 3 of 4 are correct, so the confidence should be 0.75
    >>> T = fit_temperature(predicted, torch.tensor([0, 0, 0, 1] * 1000))
    >>> apply_temperature(predicted[:1], T).round(decimals=2)
    tensor([[0.7500, 0.2500]])
    """
    from scipy.optimize import minimize_scalar

    logarithms, target = _log(probabilities.double()), target.long()
    ignored = -100 if ignore_index is None else ignore_index  # torch's default ignore_index
    prior = 1 / (2 * PRIOR_DEVIATION**2 * max(1, int((target != ignored).sum())))

    def loss(x: float) -> float:
        nll = float(torch.nn.functional.cross_entropy(logarithms * exp(x), target, ignore_index=ignored))
        return nll + prior * x**2

    # The search is over x = log(1/T), so that it is precise for large T too.
    bounds = (-log(MAX_TEMPERATURE), -log(MIN_TEMPERATURE))
    return exp(-minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)


def calibrate(
    probabilities: Tensor,
    target: Tensor,
    *,
    claim: Tensor | None = None,
    coverage: float | None = None,
    max_error: float | None = None,
    claim_coverage: float | None = None,
    temperature: bool = False,
    ignore_index: int | None = None,
) -> Rejection:
    """Choose the thresholds on claim and confidence, and optionally the temperature, from validation examples.

    The threshold on the claim comes first. The threshold on the confidence is chosen among the claimed examples.

    Args:
        probabilities: combined probabilities (B, C, …)
        target: labels (B, …)
        claim: claim of the strongest member (B, …), or None for a method without an auxiliary class
        coverage: fraction of all examples to accept
        max_error: maximum error among the accepted examples; as many examples as possible are accepted
        claim_coverage: fraction of the examples, or pixels, that count as claimed; by default 0.99, or `coverage` if it
            is higher
        temperature: whether to fit a temperature first; without `coverage` and `max_error`, all examples are accepted
        ignore_index: label of examples or pixels that are ignored

    Returns:
        The threshold and temperature, with the coverage and error that they give on these examples.

    Raises:
        UsageError: if both `coverage` and `max_error` are given, if nothing is asked for, if `claim_coverage` is below
            `coverage`, there are no claims or no image is claimed, or if `max_error` cannot be reached.

    >>> probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> calibrate(probabilities, torch.tensor([0, 0, 1]), max_error=0).coverage
    0.6666666666666666
    """
    if ignore_index is not None:  # exclude examples that have no label
        known = target.ne(ignore_index).flatten(1).any(1) if target.ndim > 1 else target.ne(ignore_index)
        probabilities, target, claim = probabilities[known], target[known], None if claim is None else claim[known]
    asked = temperature or claim_coverage is not None
    if (coverage is None) == (max_error is None) and not (asked and coverage is None):
        raise UsageError(f"Expected either coverage or max_error, got coverage={coverage} and max_error={max_error}.")
    if coverage is not None:
        _check_fraction("coverage", coverage)
    if claim_coverage is not None and claim is None:
        raise UsageError("claim_coverage needs a method with an auxiliary class, such as amcl. Omit it.")
    T = fit_temperature(probabilities, target, ignore_index) if temperature else 1.0
    highest, label = apply_temperature(probabilities, T).max(1)
    valid = None if ignore_index is None else target.ne(ignore_index)
    confidence, wrong = per_example(highest), per_example((label != target).double(), valid)
    rule = Rejection(temperature=T)
    if claim is not None and not (coverage is None and max_error is None and claim_coverage is None):
        known = claim.flatten() if valid is None else claim[valid]
        rule = replace(rule, claim_threshold=claim_threshold(known, _claim_coverage(claim_coverage, coverage)))
    claimed = torch.ones_like(confidence, dtype=torch.bool) if claim is None else claimed_examples(rule.claims(claim))
    claimed = claimed | (rule.claim_threshold is None)
    if rule.claim_threshold is not None and not claimed.any():
        raise UsageError("Less than half of the pixels of each image would be claimed. Raise claim_coverage.")
    if coverage is not None:
        # An unclaimed example is never accepted, so that it counts as one with the lowest confidence.
        share = min(1.0, coverage * len(claimed) / max(1, int(claimed.sum())))
        rule = replace(rule, threshold=threshold_for_coverage(confidence[claimed], share))
    elif max_error is not None:
        rule = replace(rule, threshold=threshold_for_error(confidence[claimed], wrong[claimed], max_error))
    accepted = claimed & (confidence >= rule.threshold)
    return replace(rule, coverage=float(accepted.double().mean()), error=float(wrong[accepted].mean()))


def claim_threshold(claim: Tensor, coverage: float) -> float:
    """Return a threshold on the claim that a fraction `coverage` of the examples (B,) reach, or more in case of ties.

    The threshold is halfway between the lowest claim that reaches it and the next lower one or, if all reach it, 0. So
    weaker claims than those of the validation examples are recognised even with `coverage=1`.

    >>> [round(claim_threshold(torch.tensor([0.9, 0.8, 0.6, 0.2]), coverage), 4) for coverage in (0.5, 1)]
    [0.7, 0.1]
    """
    return threshold_for_coverage(claim, coverage) or float(claim.amin()) / 2


def _claim_coverage(asked: float | None, coverage: float | None) -> float:
    """Return the fraction of examples that are claimed."""
    if asked is None:
        return max(CLAIM_COVERAGE, coverage or 0.0)
    _check_fraction("claim_coverage", asked)
    if coverage is not None and asked < coverage:
        raise UsageError(
            f"Expected claim_coverage >= coverage, because only claimed examples are accepted, got {asked}."
        )
    return asked


def _check_fraction(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise UsageError(f"Expected 0 < {name} <= 1, got {value}.")


def threshold_for_coverage(confidence: Tensor, coverage: float) -> float:
    """Return a threshold that accepts a fraction `coverage` of the examples (B,), or more only in case of ties.

    The threshold is halfway between the lowest accepted confidence and the next lower one, so that a different rounding
    on another device does not matter.

    >>> round(threshold_for_coverage(torch.tensor([0.9, 0.8, 0.6, 0.2]), 0.5), 4)
    0.7
    """
    _check_fraction("coverage", coverage)
    descending = _descending(confidence)
    return _threshold(descending, ceil(coverage * len(descending) - 1e-9) - 1)


def threshold_for_error(confidence: Tensor, wrong: Tensor, max_error: float) -> float:
    """Return a threshold that accepts as many examples as possible while their mean `wrong` (B,) is up to `max_error`.

    >>> confidence, wrong = torch.tensor([0.9, 0.8, 0.6, 0.2]), torch.tensor([False, False, True, False])
    >>> [round(threshold_for_error(confidence, wrong, max_error), 4) for max_error in (0.3, 0.2)]
    [0.0, 0.7]
    """
    if not 0 <= max_error < 1:
        raise UsageError(f"Expected 0 <= max_error < 1, got {max_error}.")
    from torchmcl.metrics.rejection import risk_coverage

    descending = _descending(confidence)
    _, risk = risk_coverage(confidence, wrong.double())
    # Examples with equal confidence are accepted together or not at all.
    last = torch.cat([descending[:-1] != descending[1:], descending.new_ones(1, dtype=torch.bool)])
    possible = (last & (risk <= max_error + 1e-9)).nonzero()
    if not len(possible):
        best = 100 * float(risk[last].min())
        raise UsageError(f"The lowest possible error, {best:.2f} %, exceeds {100 * max_error:g} %. Raise max_error.")
    return _threshold(descending, int(possible.max()))


def _descending(confidence: Tensor) -> Tensor:
    if confidence.ndim != 1 or not len(confidence) or not bool(confidence.isfinite().all()):
        raise UsageError(f"Expected finite confidences (B,) for at least one example, got {describe(confidence)}.")
    return confidence.sort(descending=True).values


def _threshold(descending: Tensor, index: int) -> float:
    """Return a threshold between the confidence at `index` and the next lower one, or 0 if no confidence is lower."""
    lowest = descending[index]
    lower = descending[descending < lowest]
    if not len(lower):
        return 0.0
    middle = (lowest + lower[0]) / 2
    return float(middle if middle > lower[0] else lowest)


def _log(probabilities: Tensor) -> Tensor:
    probabilities = to_float32(probabilities)
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

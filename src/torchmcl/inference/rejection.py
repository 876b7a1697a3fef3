"""Rejection of uncertain predictions: the confidence threshold, and the temperature that calibrates the confidence."""

from math import ceil, exp, log

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.structures.output import describe, per_example, to_float32
from torchmcl.structures.rejection import Rejection

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0


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
    """Return the temperature in [0.05, 20] with the lowest negative log-likelihood.

    The negative log-likelihood is convex in 1/T, so a bounded scalar search finds its minimum.

    Args:
        probabilities: combined probabilities of validation examples (B, C, …)
        target: labels (B, …)
        ignore_index: label of examples or pixels that are ignored

    >>> predicted = torch.tensor([[0.99, 0.01]] * 4)  # 3 of 4 are correct, so the confidence should be 0.75
    >>> T = fit_temperature(predicted, torch.tensor([0, 0, 0, 1]))
    >>> apply_temperature(predicted[:1], T)
    tensor([[0.7500, 0.2500]])
    """
    from scipy.optimize import minimize_scalar

    logarithms, target = _log(probabilities.double()), target.long()
    ignored = -100 if ignore_index is None else ignore_index  # torch's default ignore_index

    def loss(x: float) -> float:
        return float(torch.nn.functional.cross_entropy(logarithms * exp(x), target, ignore_index=ignored))

    # The search is over x = log(1/T), so that it is precise for large T too. The loss has one minimum in x as well.
    bounds = (-log(MAX_TEMPERATURE), -log(MIN_TEMPERATURE))
    return exp(-minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)


def calibrate(
    probabilities: Tensor,
    target: Tensor,
    *,
    coverage: float | None = None,
    max_error: float | None = None,
    temperature: bool = False,
    ignore_index: int | None = None,
) -> Rejection:
    """Choose the rejection threshold, and optionally the temperature, from validation examples.

    Args:
        probabilities: combined probabilities (B, C, …)
        target: labels (B, …)
        coverage: fraction of the examples to accept
        max_error: maximum error among the accepted examples; as many examples as possible are accepted
        temperature: whether to fit a temperature first; without `coverage` and `max_error`, all examples are accepted
        ignore_index: label of examples or pixels that are ignored

    Returns:
        The threshold and temperature, with the coverage and error that they give on these examples.

    Raises:
        UsageError: if both `coverage` and `max_error` are given, if neither is and `temperature` is False, or if
            `max_error` cannot be reached.

    >>> probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> calibrate(probabilities, torch.tensor([0, 0, 1]), max_error=0).coverage
    0.6666666666666666
    """
    if ignore_index is not None:  # exclude examples that have no label
        known = target.ne(ignore_index).flatten(1).any(1) if target.ndim > 1 else target.ne(ignore_index)
        probabilities, target = probabilities[known], target[known]
    if (coverage is None) == (max_error is None) and not (temperature and coverage is None):
        raise UsageError(f"Expected either coverage or max_error, got coverage={coverage} and max_error={max_error}.")
    T = fit_temperature(probabilities, target, ignore_index) if temperature else 1.0
    highest, label = apply_temperature(probabilities, T).max(1)
    valid = None if ignore_index is None else target.ne(ignore_index)
    confidence, wrong = per_example(highest), per_example((label != target).double(), valid)
    threshold = 0.0
    if coverage is not None:
        threshold = threshold_for_coverage(confidence, coverage)
    elif max_error is not None:
        threshold = threshold_for_error(confidence, wrong, max_error)
    accepted = confidence >= threshold
    return Rejection(threshold, T, float(accepted.double().mean()), float(wrong[accepted].mean()))


def threshold_for_coverage(confidence: Tensor, coverage: float) -> float:
    """Return a threshold that accepts a fraction `coverage` of the examples (B,), or more only in case of ties.

    The threshold is halfway between the lowest accepted confidence and the next lower one, so that a different rounding
    on another device does not matter.

    >>> round(threshold_for_coverage(torch.tensor([0.9, 0.8, 0.6, 0.2]), 0.5), 4)
    0.7
    """
    if not 0 < coverage <= 1:
        raise UsageError(f"Expected 0 < coverage <= 1, got {coverage}.")
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

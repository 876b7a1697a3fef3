"""When not to answer: a threshold on the confidence, and the temperature that the confidence is measured at."""

from math import ceil, exp, log

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.structures.output import describe, per_example, to_float32
from torchmcl.structures.rejection import Rejection

COLDEST, HOTTEST = 0.05, 20.0


def tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """p(c)^(1/T) / sum_d p(d)^(1/T), (B, C, …) -> (B, C, …): softmax(log p / T) of the ensemble's one answer.

    Applied behind the combiner, whichever that is, so that no label ever changes: T above 1 only makes answers less
    sure, below 1 surer (Guo et al. 2017, on the logarithm of the combined probabilities in place of logits).

    >>> tempered(torch.tensor([[0.8, 0.2]]), 2.0)
    tensor([[0.6667, 0.3333]])
    """
    if temperature == 1:
        return probabilities
    return (_log(probabilities) / temperature).softmax(1)


def fit_temperature(probabilities: Tensor, target: Tensor, ignore_index: int | None = None) -> float:
    """The temperature in [0.05, 20] of the least negative log-likelihood, (B, C, …), (B, …) -> T.

    Labels that are `ignore_index` do not count.

    The likelihood is convex in 1/T, so that a bounded search for one number finds the one minimum.

    >>> right, wrong = [[0.99, 0.01]] * 3, [[0.99, 0.01]]  # right three times of four: 3/4 is all it should say
    >>> T = fit_temperature(torch.tensor(right + wrong), torch.tensor([0, 0, 0, 1]))
    >>> tempered(torch.tensor([[0.99, 0.01]]), T)
    tensor([[0.7500, 0.2500]])
    """
    from scipy.optimize import minimize_scalar

    logarithms, target = _log(probabilities.double()), target.long()
    ignored = -100 if ignore_index is None else ignore_index  # torch's own default is no label

    def likelihood(x: float) -> float:
        return float(torch.nn.functional.cross_entropy(logarithms * exp(x), target, ignore_index=ignored))

    # Over x = log(1/T), in which it still falls before it rises: fine steps where T is large, too.
    found = minimize_scalar(
        likelihood, bounds=(-log(HOTTEST), -log(COLDEST)), method="bounded", options={"xatol": 1e-6}
    )
    return exp(-found.x)


def calibrated(
    probabilities: Tensor,
    target: Tensor,
    *,
    coverage: float | None = None,
    max_error: float | None = None,
    temperature: bool = False,
    ignore_index: int | None = None,
) -> Rejection:
    """What validation examples say: combined probabilities (B, C, …), target (B, …) -> rejection.

    Either as many answers as `coverage` are accepted, or as many as keep their error at `max_error`, or all.
    Labels that are `ignore_index` do not count.

    >>> confident = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> calibrated(confident, torch.tensor([0, 0, 1]), max_error=0).coverage
    0.6666666666666666
    """
    if ignore_index is not None:  # examples without any label tell nothing
        known = target.ne(ignore_index).flatten(1).any(1) if target.ndim > 1 else target.ne(ignore_index)
        probabilities, target = probabilities[known], target[known]
    if (coverage is None) == (max_error is None) and not (temperature and coverage is None):
        raise UsageError(f"Expected one of coverage and max_error, got {coverage} and {max_error}.")
    T = fit_temperature(probabilities, target, ignore_index) if temperature else 1.0
    sure, answer = tempered(probabilities, T).max(1)
    valid = None if ignore_index is None else target.ne(ignore_index)
    confidence, wrong = per_example(sure), per_example((answer != target).double(), valid)
    threshold = 0.0
    if coverage is not None:
        threshold = for_coverage(confidence, coverage)
    elif max_error is not None:
        threshold = for_error(confidence, wrong, max_error)
    accepted = confidence >= threshold
    return Rejection(threshold, T, float(accepted.double().mean()), float(wrong[accepted].mean()))


def for_coverage(confidence: Tensor, coverage: float) -> float:
    """The highest threshold that at least the part `coverage` of the examples reaches, (B,) -> threshold.

    Halfway to the next confidence below, so that a rounding elsewhere decides nothing.

    >>> round(for_coverage(torch.tensor([0.9, 0.8, 0.6, 0.2]), 0.5), 4)
    0.7
    """
    if not 0 < coverage <= 1:
        raise UsageError(f"Expected a coverage above 0 and up to 1, got {coverage}.")
    _inspect(confidence)
    falling = confidence.sort(descending=True).values
    return _below(falling, falling[ceil(coverage * len(falling) - 1e-9) - 1])


def for_error(confidence: Tensor, wrong: Tensor, max_error: float) -> float:
    """The lowest threshold above which the error is at most `max_error`, (B,), (B,) -> threshold.

    >>> round(for_error(torch.tensor([0.9, 0.8, 0.6, 0.2]), torch.tensor([False, False, True, False]), 0.3), 4)
    0.0
    >>> round(for_error(torch.tensor([0.9, 0.8, 0.6, 0.2]), torch.tensor([False, False, True, False]), 0.2), 4)
    0.7
    """
    if not 0 <= max_error < 1:
        raise UsageError(f"Expected a max_error from 0 to below 1, got {max_error}.")
    from torchmcl.metrics.rejection import risk_coverage

    _inspect(confidence)
    falling = confidence.sort(descending=True).values
    _, risk = risk_coverage(confidence, wrong.double())
    # Examples of one confidence are accepted together or not at all.
    ends = torch.cat([falling[:-1] != falling[1:], falling.new_ones(1, dtype=torch.bool)])
    places = (ends & (risk <= max_error + 1e-9)).nonzero()
    if not len(places):
        best = 100 * float(risk[ends].min())
        raise UsageError(
            f"Expected confident answers with an error of at most {100 * max_error:g} %, got {best:.2f} % at best. "
            "Allow more."
        )
    return _below(falling, falling[int(places.max())])


def _below(falling: Tensor, lowest: Tensor) -> float:
    """A threshold that `lowest` reaches and the next of the confidences, which fall, does not; 0 where none follows."""
    lower = falling[falling < lowest]
    if not len(lower):
        return 0.0
    middle = (lowest + lower[0]) / 2
    return float(middle if middle > lower[0] else lowest)


def _inspect(confidence: Tensor) -> None:
    if confidence.ndim != 1 or not len(confidence) or not bool(confidence.isfinite().all()):
        raise UsageError(f"Expected finite confidence (B,) of at least one example, got {describe(confidence)}.")


def _log(probabilities: Tensor) -> Tensor:
    probabilities = to_float32(probabilities)
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

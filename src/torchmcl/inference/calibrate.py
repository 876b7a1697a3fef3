"""Calibration of a trained ensemble on validation data: the thresholds of a classifier, the density of a regression.

`collected` and `calibrate` are generic functions of the task. To calibrate a task of your own, register functions for
its class.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchmcl._utils.logs import report
from torchmcl._utils.validation import validate_types
from torchmcl.errors import UsageError
from torchmcl.inference import rejection
from torchmcl.inference.answers import strongest_claim
from torchmcl.inference.hypotheses import em_step
from torchmcl.inference.member_calibration import MemberCalibration, calibrate_members
from torchmcl.methods import Method
from torchmcl.metrics.voronoi import voronoi_log_density
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.rejection import Rejection, claimed_examples
from torchmcl.structures.state import State
from torchmcl.structures.task import Task
from torchmcl.tasks import Labels, Regression

LOGGER = logging.getLogger(__name__)
MAX_UNCLAIMED = 0.05  # of the validation examples, without a warning
MAX_ROWS = 2000  # the maximum number of targets that determine a bandwidth
BANDWIDTHS = (1e-3, 10.0)  # the range of bandwidths, in standardised units
SMALLEST = 1e-6  # of a spread or a factor of the scores


@dataclass(frozen=True)
class Density:
    """The density of the targets that calibration has chosen.

    Attributes:
        kernel: voronoi (kernels on the Voronoi cells of the hypotheses) or mixture (of normal distributions)
        nll: the negative log-likelihood of the validation targets, in their units
        examples: the number of validation examples
        bandwidth: the standard deviation of the kernels, in standard deviations of the targets
        spread: the standard deviation of each hypothesis, in standard deviations of the targets
    """

    kernel: str
    nll: float
    examples: int
    bandwidth: float | None = None
    spread: tuple[float, ...] | None = None


def collect(method: Method, batches: Iterable[tuple[EnsembleOutput, Tensor]]) -> tuple[Tensor, Tensor]:
    """Concatenate the values that `calibrate` needs, and the targets, on the CPU."""
    parts = [(collected(method.task, method, output).cpu(), target.cpu()) for output, target in batches]
    if not parts:
        raise UsageError("Expected at least one labelled example, got none.")
    values, target = (torch.cat(part) for part in zip(*parts, strict=True))
    return values, target


@singledispatch
def collected(task: Task, method: Method, output: EnsembleOutput) -> Tensor:
    """Return the values of a batch that `calibrate` needs, examples first."""
    raise UsageError(f"Cannot calibrate the task {task.name}. Calibrate classification, segmentation or regression.")


@singledispatch
def calibrate(task: Task, values: Tensor, target: Tensor, **options: Any) -> tuple[Task, Rejection | None, Any]:
    """Calibrate a task on validation data.

    Args:
        task: the task
        values: the values from `collect`, (N, …)
        target: the targets (N, …)
        **options: the options that are given to `Specialists.calibrate`, and the `method`

    Returns:
        The calibrated task, the rejection threshold of a classifier or None, and the result to report.
    """
    raise NotImplementedError


@singledispatch
def default_options(task: Task) -> dict[str, Any] | None:
    """Return the options with which `fit` calibrates a model on its validation split, or None if it does not."""
    return None


@collected.register
def _(task: Labels, method: Method, output: EnsembleOutput) -> Tensor:
    return EnsembleOutput.of(output).logits.transpose(0, 1) if method.auxiliary else method.combine(output)


@calibrate.register
def _(
    task: Labels, values: Tensor, target: Tensor, *, method: Method | None = None, **options: Any
) -> tuple[Task, Rejection | None, Any]:
    _refuse(options, ("density",), task)
    if method is None or not method.auxiliary:
        found = rejection.calibrate(values, target, ignore_index=task.ignore_index, **options)
        return task, found, found
    logits, members = values.transpose(0, 1), MemberCalibration()
    if options.get("temperature"):
        members = calibrate_members(method.combine, logits, target, task.ignore_index)
    rule = Rejection(member_temperatures=members.temperatures, auxiliary_bias=members.bias)
    output = rule.calibrated(logits)
    claim = strongest_claim(method, output.logits.softmax(2))
    assert claim is not None
    combined = method.combine(output)
    found = rejection.calibrate(combined, target, claim=claim, ignore_index=task.ignore_index, **options)
    _warn_unclaimed(rule.claims(claim), task.counted(target))
    found = replace(found, member_temperatures=members.temperatures, auxiliary_bias=members.bias)
    return task, found, found


def _warn_unclaimed(claimed: Tensor, counted: Tensor | None) -> None:
    """Report that members do not claim what they should, given bool (N, …) and which examples have a label (N,)."""
    examples = claimed_examples(claimed)
    unclaimed = 1 - float((examples if counted is None else examples[counted]).double().mean())
    if unclaimed > MAX_UNCLAIMED:
        report(
            LOGGER,
            f"No member claims {100 * unclaimed:.1f} % of the validation examples, which belong to known classes. "
            "Claims say little about unseen data here. Train longer, or compare the scores of: torchmcl evaluate",
            logging.WARNING,
        )


@collected.register
def _(task: Regression, method: Method, output: EnsembleOutput) -> Tensor:
    return EnsembleOutput.of(output).logits.transpose(0, 1)


@calibrate.register
def _(
    task: Regression,
    values: Tensor,
    target: Tensor,
    *,
    method: Method | None = None,
    density: Literal["voronoi", "mixture"] | None = None,
    **options: Any,
) -> tuple[Task, Rejection | None, Any]:
    _refuse(options, ("coverage", "max_error", "claim_coverage", "temperature"), task)
    validate_types({"density": density}, _calibrated)
    if density is None and task.density is not None:
        raise UsageError(
            f"The members predict densities (loss {task.density}), which need no calibration. To replace them, pass "
            "density='voronoi' or density='mixture'."
        )
    calibrated = _calibrated(task, values.transpose(0, 1), target, density or "voronoi")
    log_density = calibrated.log_density(values.transpose(0, 1), target)
    assert log_density is not None
    nll = -float(log_density.double().mean())
    kernel = "mixture" if calibrated.bandwidth is None else "voronoi"
    return calibrated, None, Density(kernel, nll, len(target), calibrated.bandwidth, calibrated.spread)


@default_options.register
def _(task: Regression) -> dict[str, Any] | None:
    return {"density": "voronoi"} if task.kernel is None else None


def _calibrated(
    task: Regression, outputs: Tensor, target: Tensor, density: Literal["voronoi", "mixture"] | None
) -> Regression:
    """Return the task with a density, given outputs (M, N, C) and targets (N, D) or (N, T, D)."""
    plain = replace(task, bandwidth=None, spread=None, score_factor=None)
    target, state = plain.prepare(outputs, target, State())
    weight = torch.ones(len(target), 1) if state.loss_weight is None else state.loss_weight
    example, position = weight.nonzero(as_tuple=True)  # one row per target
    found, scores = outputs[:, example, : task.targets], plain.scores(outputs)[:, example]
    rows = (target.unsqueeze(1) if target.ndim == 2 else target)[example, position]
    if density == "voronoi":
        return replace(plain, bandwidth=fit_bandwidth(found, scores, rows, weight[example, position]))
    mixture = em_step(found, scores, rows)
    factor = (mixture.weights / mixture.prior.clamp_min(SMALLEST)).clamp_min(SMALLEST)
    spread = mixture.scales.clamp_min(SMALLEST)
    return replace(plain, spread=tuple(spread.tolist()), score_factor=tuple(factor.tolist()))


def fit_bandwidth(hypotheses: Tensor, scores: Tensor, target: Tensor, weight: Tensor | None = None) -> float:
    """Return the bandwidth between 0.001 and 10 with the lowest negative log-likelihood; see `voronoi_log_density`.

    The search takes the best of 33 bandwidths and refines it between its neighbours. At most 2,000 evenly spaced
    targets are used.

    Args:
        hypotheses: (M, N, D), in standardised units
        scores: (M, N)
        target: (N, D), in standardised units
        weight: the weight of each target (N,); by default 1

    >>> target = torch.tensor([[-0.2], [0.2]])  # of one hypothesis, 0
    >>> round(fit_bandwidth(torch.zeros(1, 2, 1), torch.ones(1, 2), target), 3)
    0.2
    """
    from scipy.optimize import minimize_scalar

    chosen = torch.linspace(0, len(target) - 1, min(len(target), MAX_ROWS)).round().long()
    f, s, y = hypotheses[:, chosen], scores[:, chosen], target[chosen]
    w = torch.ones(len(chosen)) if weight is None else weight[chosen]

    def nll(x: float) -> float:
        log_density = voronoi_log_density(f, s, y, bandwidth=float(np.exp(x)))
        return -float((w * log_density.double()).sum() / w.sum())

    grid = np.log(np.geomspace(*BANDWIDTHS, 33))
    best = int(np.argmin([nll(x) for x in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    return float(np.exp(minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-4}).x))


def _refuse(options: dict[str, Any], names: tuple[str, ...], task: Task) -> None:
    """Raise UsageError for options of another task, and remove them if they are not set."""
    for name in names:
        if options.pop(name, None):
            raise UsageError(f"The option {name} does not apply to the task {task.name}. Omit it.")

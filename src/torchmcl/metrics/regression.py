"""Metrics for hypotheses of continuous targets.

The axes are M members (hypotheses), B examples, D target values, T targets per example and S steps of a trajectory.
Targets (B, D) can also be (B, T, D): several targets per example, padded with NaN. A metric is then the mean over the
targets of an example, and the mean over examples.
"""

from collections.abc import Callable
from math import log, pi
from typing import Any, cast, final

import torch
from torch import Tensor
from torch.nn import functional as F

from torchmcl.errors import UsageError, known_name
from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.stateful import MeanMetric
from torchmcl.structures.output import describe, per_example, to_float32

KERNELS = ("gaussian", "laplace")


def rmse(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute the root mean squared error over examples and target values: (B, D), (B, D) -> a scalar.

    >>> rmse(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 2.0]]))
    tensor(2.1213)
    """
    return _squared_errors(prediction, target).mean().sqrt()


def oracle_rmse(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Compute the root mean squared error of the best hypothesis of each example, the oracle error of regression.

    sqrt(mean_B min_m |f_m - y|^2 / D).

    Args:
        hypotheses: the members' predictions, (M, B, D)
        target: (B, D) or (B, T, D)

    Returns:
        A scalar.

    >>> oracle_rmse(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.5]]))
    tensor(1.5000)
    """
    return oracle_squared_errors(hypotheses, target).mean().sqrt()


def distortion(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Compute the distortion, mean_B min_m |f_m - y|^2, which is D times the square of `oracle_rmse`.

    >>> distortion(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.5]]))
    tensor(2.2500)
    """
    return hypotheses.shape[2] * oracle_squared_errors(hypotheses, target).mean()


def member_rmse(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Compute the root mean squared error of each member: (M, B, D), (B, D) or (B, T, D) -> (M,).

    >>> member_rmse(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.0]]))
    tensor([2., 2.])
    """
    return _member_squared_errors(hypotheses, target).mean(1).sqrt()


def oracle_squared_errors(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Return min_m |f_m - y|^2 / D for each example: (M, B, D), (B, D) or (B, T, D) -> (B,).

    >>> oracle_squared_errors(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[[4.0], [1.0], [torch.nan]]]))
    tensor([0.5000])
    """
    f, y, valid = _aligned(hypotheses, target)
    return per_example((f - y).square().mean(-1).amin(0), valid)


def winners(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Return which hypothesis is closest to the target, as weights of 0 or 1: (M, B, D), (B, D) -> (M, B).

    With several targets per example, (B, T, D), the weights are shares of the example's targets. Ties go to the first
    member. `share` and, for data with groups, `purity` of these weights measure how members divide the data.

    >>> winners(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[4.0]])).flatten()
    tensor([0., 1.])
    """
    f, y, valid = _aligned(hypotheses, target)
    closest = (f - y).square().mean(-1).argmin(0)
    won = F.one_hot(closest, len(f)).movedim(-1, 0).to(f.dtype)
    return torch.stack([per_example(one, valid) for one in won])


def mixture_nll(
    hypotheses: Tensor, scores: Tensor, target: Tensor, scale: Tensor | float, kernel: str = "gaussian"
) -> Tensor:
    """Compute the negative log-likelihood of a mixture: mean_B -log sum_m s_m prod_d p(y_d; f_md, scale_md).

    Args:
        hypotheses: the locations f, (M, B, D)
        scores: the weights s of the mixture, (M, B), which sum to 1 over M
        target: (B, D) or (B, T, D)
        scale: the scales of the distributions, (M, B, D) or of a shape that broadcasts to it
        kernel: the distributions: gaussian, with standard deviation `scale`, or laplace

    Returns:
        A scalar.

    >>> mixture_nll(torch.zeros(2, 1, 1), torch.full((2, 1), 0.5), torch.zeros(1, 1), 1.0)
    tensor(0.9189)
    """
    return mixture_nlls(hypotheses, scores, target, scale, kernel).mean()


def crps(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Compute the continuous ranked probability score of weighted hypotheses, averaged over target values.

    mean_B mean_d [ sum_m s_m |f_m - y| - 1/2 sum_{m, n} s_m s_n |f_m - f_n| ] (Gneiting & Raftery 2007, eq. 21).

    Args:
        hypotheses: the members' predictions, or samples, (M, B, D)
        scores: their probabilities, (M, B)
        target: (B, D) or (B, T, D)

    Returns:
        A scalar in the units of the target.

    >>> crps(torch.tensor([[[0.0]], [[2.0]]]), torch.full((2, 1), 0.5), torch.tensor([[0.0]]))
    tensor(0.5000)
    """
    return _crps(hypotheses, scores, target).mean()


def energy_score(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Compute the energy score, the extension of `crps` to vectors, of weighted hypotheses.

    mean_B [ sum_m s_m |f_m - y| - 1/2 sum_{m, n} s_m s_n |f_m - f_n| ] with Euclidean norms (Gneiting & Raftery 2007,
    eq. 22). The arguments are those of `crps`.

    >>> energy_score(torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]]), torch.full((2, 1), 0.5), torch.tensor([[0.0, 0.0]]))
    tensor(1.2500)
    """
    return _energy_score(hypotheses, scores, target).mean()


def earth_movers_distance(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Compute the earth mover's distance between weighted hypotheses and the targets of each example.

    The distance (Wasserstein-1, Euclidean) is the lowest cost of moving the mass s_m of the hypotheses to the targets,
    which have the same mass each. For D = 1, it is the integral of the difference of the distribution functions.
    Otherwise, all examples together are one sparse linear program.

    Args:
        hypotheses: the members' predictions, (M, B, D)
        scores: their probabilities, (M, B)
        target: (B, D) or (B, T, D), padded with NaN

    Returns:
        The mean over examples, a scalar in the units of the target.

    >>> earth_movers_distance(torch.tensor([[[0.0]], [[2.0]]]), torch.full((2, 1), 0.5), torch.tensor([[[0.0], [3.0]]]))
    tensor(0.5000)
    """
    return _earth_movers_distance(hypotheses, scores, target).mean()


def min_ade(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Compute the minimum average displacement error: mean_B min_m mean_s |f_ms - y_s|.

    Args:
        hypotheses: the members' trajectories, (M, B, S, D)
        target: the true trajectories, (B, S, D)

    Returns:
        A scalar in the units of the target.

    >>> min_ade(torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]]), torch.zeros(1, 2, 2))
    tensor(2.5000)
    """
    return _min_ade(hypotheses, target).mean()


def min_fde(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Compute the minimum final displacement error: mean_B min_m |f_mS - y_S|; the arguments are those of `min_ade`.

    >>> min_fde(torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]]), torch.zeros(1, 2, 2))
    tensor(5.)
    """
    return _min_fde(hypotheses, target).mean()


def miss_rate(hypotheses: Tensor, target: Tensor, threshold: float = 2.0) -> Tensor:
    """Compute the fraction of examples whose final displacement error exceeds a threshold for all hypotheses.

    The default threshold is that of Argoverse, 2 metres; the other arguments are those of `min_ade`.

    >>> miss_rate(torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]]), torch.zeros(1, 2, 2))
    tensor(1.)
    """
    return _missed(hypotheses, target, threshold).mean()


def brier_min_fde(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    """Compute the Brier minimum final displacement error of Argoverse: mean_B [ |f_mS - y_S| + (1 - s_m)^2 ].

    m is the hypothesis with the lowest final displacement error.

    Args:
        hypotheses: the members' trajectories, (M, B, S, D)
        scores: their probabilities, (M, B)
        target: the true trajectories, (B, S, D)

    Returns:
        A scalar.

    >>> brier_min_fde(torch.tensor([[[[3.0, 4.0]]]]), torch.ones(1, 1), torch.zeros(1, 1, 2))
    tensor(5.)
    """
    return _brier_min_fde(hypotheses, scores, target).mean()


def _aligned(hypotheses: Tensor, target: Tensor, *scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return hypotheses (M, B, D) or (M, B, 1, D), targets with padding filled, and which targets are valid."""
    axes = "(B, T, D)" if target.ndim == 3 else "(B, D)"
    pattern = f"hypotheses (M, B, D), target {axes}" + " and scores (M, B)" * len(scores)
    check_shapes(pattern, hypotheses, target, *scores)
    f, y = to_float32(hypotheses), to_float32(target)
    if target.ndim == 2:
        return f, y, None
    valid = ~y.isnan().all(2)
    return f.unsqueeze(2), y.masked_fill(~valid.unsqueeze(2), 0), valid


def _scored(hypotheses: Tensor, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return `_aligned` with the scores, (M, B, 1) or (M, B, 1, 1), in the second place."""
    f, y, valid = _aligned(hypotheses, target, scores)
    return f, to_float32(scores).reshape(*scores.shape, *[1] * (f.ndim - 2)), y, valid


def _squared_errors(prediction: Tensor, target: Tensor) -> Tensor:
    return oracle_squared_errors(prediction[None], target)


def _member_squared_errors(hypotheses: Tensor, target: Tensor) -> Tensor:
    f, y, valid = _aligned(hypotheses, target)
    return torch.stack([per_example(one, valid) for one in (f - y).square().mean(-1)])


def mixture_nlls(
    hypotheses: Tensor, scores: Tensor, target: Tensor, scale: Tensor | float, kernel: str = "gaussian"
) -> Tensor:
    """Return the negative log-likelihood of each example, (B,), whose mean is `mixture_nll`."""
    known_name("kernel", kernel, KERNELS)
    f, s, y, valid = _scored(hypotheses, scores, target)
    scale = torch.as_tensor(scale, dtype=f.dtype, device=f.device)
    try:
        scale = scale.expand_as(hypotheses)
    except RuntimeError as error:
        shape = tuple(hypotheses.shape)
        raise UsageError(f"Expected a scale that broadcasts to {shape}, got {describe(scale)}.") from error
    scale = scale if valid is None else scale.unsqueeze(2)
    z = (f - y) / scale
    each = z.square() / 2 + log(2 * pi) / 2 if kernel == "gaussian" else z.abs() + log(2)
    log_p = -(each + scale.log()).sum(-1)
    return per_example(-(s.squeeze(-1).log() + log_p).logsumexp(0), valid)


def _crps(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    f, s, y, valid = _scored(hypotheses, scores, target)
    error = f - y
    order = error.argsort(0)
    error, weight = error.gather(0, order), s.expand_as(error).gather(0, order)
    # In ascending order, 1/2 sum_{m, n} s_m s_n |f_m - f_n| = sum_m s_m f_m (2 c_m - s_m - 1), c_m = sum_{n <= m} s_n.
    spread = weight * error * (2 * weight.cumsum(0) - weight - 1)
    return per_example((weight * error.abs() - spread).sum(0).mean(-1), valid)


def _energy_score(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    f, s, y, valid = _scored(hypotheses, scores, target)
    near = per_example((s.squeeze(-1) * (f - y).norm(dim=-1)).sum(0), valid)
    points, weight = to_float32(hypotheses).transpose(0, 1), to_float32(scores).T  # (B, M, D), (B, M)
    between = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return near - (weight.unsqueeze(2) * weight.unsqueeze(1) * between).sum((1, 2)) / 2


def _earth_movers_distance(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    f, s, y, valid = _scored(hypotheses, scores, target.unsqueeze(1) if target.ndim == 2 else target)
    masses = (s[:, :, 0, 0] / s[:, :, 0, 0].sum(0)).T  # (B, M)
    demands = cast(Tensor, valid) / cast(Tensor, valid).sum(1, keepdim=True)
    if y.shape[2] == 1:
        points, order = torch.cat([f[:, :, 0, 0].T, y[:, :, 0]], dim=1).sort(1)
        below = torch.cat([masses, -demands], dim=1).gather(1, order).cumsum(1)
        return (below[:, :-1].abs() * points.diff(dim=1)).sum(1)
    return _transport((f - y).norm(dim=-1).movedim(0, 1).detach(), masses, demands)


def _transport(cost: Tensor, supply: Tensor, demand: Tensor) -> Tensor:
    """Return the lowest costs of transport: cost (B, M, T), supply (B, M), demand (B, T) -> (B,)."""
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron

    B, M, T = cost.shape
    leaving = kron(eye_array(B * M), torch.ones(1, T).numpy())
    arriving = kron(eye_array(B), kron(torch.ones(1, M).numpy(), eye_array(T)))
    # In float32, the sums of supply and demand differ by more than the tolerance of the solver.
    supply, demand = (part.detach().cpu().double() for part in (supply, demand))
    supply, demand = (part / part.sum(1, keepdim=True) for part in (supply, demand))
    prices = cost.cpu().double()
    if not bool(prices.isfinite().all() and supply.isfinite().all() and demand.isfinite().all()):
        return cost.new_full((B,), torch.nan)  # as in the other metrics of hypotheses that diverged
    solution = linprog(
        prices.numpy().ravel(),
        A_eq=leaving.tocsr(),
        b_eq=supply.flatten().numpy(),
        # Equations for the demand would be redundant, and rounding makes them infeasible if some masses are tiny.
        A_ub=arriving.tocsr(),
        b_ub=(1 + 1e-9) * demand.flatten().numpy(),
        method="highs",
    )
    moved = torch.from_numpy(solution.x).reshape(B, M, T)
    return (prices * moved).sum((1, 2)).to(cost)


def _displacements(hypotheses: Tensor, target: Tensor) -> Tensor:
    """Return the distances between trajectories at each step, (M, B, S)."""
    check_shapes("trajectories (M, B, S, D) and target (B, S, D)", hypotheses, target)
    return (to_float32(hypotheses) - to_float32(target)).norm(dim=-1)


def _min_ade(hypotheses: Tensor, target: Tensor) -> Tensor:
    return _displacements(hypotheses, target).mean(2).amin(0)


def _min_fde(hypotheses: Tensor, target: Tensor) -> Tensor:
    return _displacements(hypotheses, target)[:, :, -1].amin(0)


def _missed(hypotheses: Tensor, target: Tensor, threshold: float) -> Tensor:
    return (_min_fde(hypotheses, target) > threshold).float()


def _brier_min_fde(hypotheses: Tensor, scores: Tensor, target: Tensor) -> Tensor:
    check_shapes("trajectories (M, B, S, D), target (B, S, D) and scores (M, B)", hypotheses, target, scores)
    error, best = _displacements(hypotheses, target)[:, :, -1].min(0)
    return error + (1 - to_float32(scores).gather(0, best[None])[0]).square()


class _HypothesisMetric(MeanMetric):
    higher_is_better = False
    _values: Callable[[Tensor, Tensor], Tensor]

    def update(self, hypotheses: Tensor, target: Tensor) -> None:
        """Add a batch; the arguments must have the shapes that the function of this metric expects."""
        self._add_values(self._values(hypotheses, target))


class _ScoredMetric(MeanMetric):
    higher_is_better = False
    _values: Callable[[Tensor, Tensor, Tensor], Tensor]

    def update(self, hypotheses: Tensor, scores: Tensor, target: Tensor) -> None:
        """Add a batch; the arguments must have the shapes that the function of this metric expects."""
        self._add_values(self._values(hypotheses, scores, target))


class _RootMetric(_HypothesisMetric):
    def compute(self) -> Tensor:
        """Return the square root of the mean over all examples since the last reset."""
        return super().compute().sqrt()


@final
class RMSE(_RootMetric):
    """Compute `rmse` over all batches.

    >>> metric = RMSE()
    >>> metric.update(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 2.0]]))
    >>> metric.compute()
    tensor(2.1213)
    """

    _values = staticmethod(_squared_errors)


@final
class OracleRMSE(_RootMetric):
    """Compute `oracle_rmse` over all batches.

    >>> metric = OracleRMSE()
    >>> metric.update(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.5]]))
    >>> metric.compute()
    tensor(1.5000)
    """

    _values = staticmethod(oracle_squared_errors)


@final
class MemberRMSE(_RootMetric):
    """Compute `member_rmse` for M `members` over all batches.

    >>> metric = MemberRMSE(members=2)
    >>> metric.update(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.0]]))
    >>> metric.compute()
    tensor([2., 2.])
    """

    _values = staticmethod(_member_squared_errors)

    def __init__(self, members: int, **options: Any) -> None:
        super().__init__(members, **options)


@final
class Distortion(_HypothesisMetric):
    """Compute `distortion` over all batches.

    >>> metric = Distortion()
    >>> metric.update(torch.tensor([[[1.0]], [[5.0]]]), torch.tensor([[3.5]]))
    >>> metric.compute()
    tensor(2.2500)
    """

    def update(self, hypotheses: Tensor, target: Tensor) -> None:
        """Add a batch: hypotheses (M, B, D) and targets (B, D) or (B, T, D)."""
        self._add_values(hypotheses.shape[2] * oracle_squared_errors(hypotheses, target))


@final
class MixtureNLL(MeanMetric):
    """Compute `mixture_nll` over all batches; `kernel` is "gaussian" or "laplace".

    >>> metric = MixtureNLL()
    >>> metric.update(torch.zeros(2, 1, 1), torch.full((2, 1), 0.5), torch.zeros(1, 1), torch.ones(2, 1, 1))
    >>> metric.compute()
    tensor(0.9189)
    """

    higher_is_better = False

    def __init__(self, kernel: str = "gaussian", **options: Any) -> None:
        super().__init__(**options)
        known_name("kernel", kernel, KERNELS)
        self.kernel = kernel

    def update(self, hypotheses: Tensor, scores: Tensor, target: Tensor, scale: Tensor | float) -> None:
        """Add a batch; see `mixture_nll`."""
        self._add_values(mixture_nlls(hypotheses, scores, target, scale, self.kernel))


@final
class CRPS(_ScoredMetric):
    """Compute `crps` over all batches.

    >>> metric = CRPS()
    >>> metric.update(torch.tensor([[[0.0]], [[2.0]]]), torch.full((2, 1), 0.5), torch.tensor([[0.0]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    _values = staticmethod(_crps)


@final
class EnergyScore(_ScoredMetric):
    """Compute `energy_score` over all batches.

    >>> metric = EnergyScore()
    >>> metric.update(torch.tensor([[[0.0, 0.0]], [[3.0, 4.0]]]), torch.full((2, 1), 0.5), torch.zeros(1, 2))
    >>> metric.compute()
    tensor(1.2500)
    """

    _values = staticmethod(_energy_score)


@final
class EarthMoversDistance(_ScoredMetric):
    """Compute `earth_movers_distance` over all batches.

    >>> metric = EarthMoversDistance()
    >>> metric.update(torch.tensor([[[0.0]], [[2.0]]]), torch.full((2, 1), 0.5), torch.tensor([[[0.0], [3.0]]]))
    >>> metric.compute()
    tensor(0.5000)
    """

    _values = staticmethod(_earth_movers_distance)


@final
class MinADE(_HypothesisMetric):
    """Compute `min_ade` over all batches.

    >>> metric = MinADE()
    >>> metric.update(torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]]), torch.zeros(1, 2, 2))
    >>> metric.compute()
    tensor(2.5000)
    """

    _values = staticmethod(_min_ade)


@final
class MinFDE(_HypothesisMetric):
    """Compute `min_fde` over all batches.

    >>> metric = MinFDE()
    >>> metric.update(torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]]), torch.zeros(1, 2, 2))
    >>> metric.compute()
    tensor(5.)
    """

    _values = staticmethod(_min_fde)


@final
class MissRate(_HypothesisMetric):
    """Compute `miss_rate` over all batches.

    >>> metric = MissRate(threshold=2.0)
    >>> metric.update(torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]]), torch.zeros(1, 2, 2))
    >>> metric.compute()
    tensor(1.)
    """

    def __init__(self, threshold: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.threshold = threshold

    def _values(self, hypotheses: Tensor, target: Tensor) -> Tensor:
        return _missed(hypotheses, target, self.threshold)


@final
class BrierMinFDE(_ScoredMetric):
    """Compute `brier_min_fde` over all batches.

    >>> metric = BrierMinFDE()
    >>> metric.update(torch.tensor([[[[3.0, 4.0]]]]), torch.ones(1, 1), torch.zeros(1, 1, 2))
    >>> metric.compute()
    tensor(5.)
    """

    _values = staticmethod(_brier_min_fde)

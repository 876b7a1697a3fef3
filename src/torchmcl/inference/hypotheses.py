"""Densities and samples from weighted hypotheses, and their calibration after training.

The axes are M members (hypotheses), B examples and D target values. Hypotheses are `Regression.hypotheses(output)` and
scores are `Regression.scores(output)`. The mean and the most probable hypothesis are in `tasks.combiners`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchmcl.errors import UsageError, known_name
from torchmcl.metrics.regression import KERNELS, oracle_squared_errors
from torchmcl.metrics.shapes import check_shapes
from torchmcl.metrics.voronoi import (
    cell_radius,
    check_bandwidth,
    ray_mass,
    unit_vectors,
    voronoi_log_density,
    voronoi_nll,
)
from torchmcl.structures.output import to_float32
from torchmcl.tasks.combiners import most_probable, weighted_mean

__all__ = [
    "Mixture",
    "em_step",
    "most_probable",
    "sample",
    "sample_mixture",
    "voronoi_log_density",
    "voronoi_nll",
    "weighted_mean",
]


def sample(
    hypotheses: Tensor, scores: Tensor, count: int, *, bandwidth: float, directions: int = 64, seed: int = 0
) -> Tensor:
    """Draw samples from the density of `voronoi_log_density`.

    A sample is drawn in three steps: a cell from the scores, a direction in proportion to the kernel's mass up to the
    cell's boundary in this direction, and a distance from the truncated kernel. The direction is one of `directions`
    random ones, drawn anew for each sample, so that for D > 1 the samples are approximate.

    Args:
        hypotheses: (M, B, D).
        scores: The probability of each cell, (M, B).
        count: The number of samples per example.
        bandwidth: The standard deviation of the kernels, in the units of the targets.
        directions: The number of directions to choose from for D > 1.
        seed: The seed of the samples.

    Returns:
        Samples, (count, B, D), each in the Voronoi cell that it was drawn from.

    Raises:
        UsageError: If the shapes do not match, or the count or the bandwidth is not positive.

    >>> sample(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[0.0], [1.0]]), 3, bandwidth=0.1).round()
    tensor([[[2.]],
    <BLANKLINE>
            [[2.]],
    <BLANKLINE>
            [[2.]]])
    """
    from scipy.special import gammaincinv

    check_shapes("hypotheses (M, B, D) and scores (M, B)", hypotheses, scores)
    check_bandwidth(bandwidth)
    f, B, D = to_float32(hypotheses), hypotheses.shape[1], hypotheses.shape[2]
    generator = torch.Generator().manual_seed(seed)
    cell = _drawn(scores, count, generator)
    start = f[cell.to(f.device), torch.arange(B, device=f.device)]  # (count, B, D)
    rays = unit_vectors(D, directions * count * B, generator=generator)
    rays = (rays.unsqueeze(1).unsqueeze(1) if D == 1 else rays.unflatten(0, (-1, count, B))).to(f)
    radius = cell_radius(f, start, rays)  # (directions, count, B)
    mass = ray_mass(radius, bandwidth, D).cpu().double()
    chosen = torch.multinomial(mass.flatten(1).T, 1, generator=generator).reshape(1, count, B)
    uniform = torch.rand(count, B, generator=generator, dtype=torch.float64)
    quantile = gammaincinv(D / 2, (uniform * mass.gather(0, chosen)[0]).numpy())
    distance = bandwidth * (2 * torch.from_numpy(quantile)).sqrt().to(f)
    distance = distance.minimum(radius.gather(0, chosen.to(f.device))[0])  # a rounding error can leave the cell
    rays = rays.expand(-1, count, B, D).gather(0, chosen.to(f.device).unsqueeze(3).expand(1, count, B, D))[0]
    return start + distance.unsqueeze(2) * rays


def sample_mixture(
    hypotheses: Tensor, scores: Tensor, scales: Tensor, count: int, *, kernel: str = "gaussian", seed: int = 0
) -> Tensor:
    """Draw samples from the mixture of the members' predicted densities; see `metrics.mixture_nll`.

    Args:
        hypotheses: (M, B, D).
        scores: The weight of each member, (M, B).
        scales: The scales of the members' densities, (M, B, D).
        count: The number of samples per example.
        kernel: The densities: gaussian or laplace.
        seed: The seed of the samples.

    Returns:
        Samples, (count, B, D).

    Raises:
        UsageError: If the shapes do not match, the kernel is unknown or the count is not positive.

    >>> f, s = torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[0.0], [1.0]])
    >>> sample_mixture(f, s, torch.full((2, 1, 1), 0.01), 2).round().flatten()
    tensor([2., 2.])
    """
    check_shapes("hypotheses (M, B, D), scores (M, B) and scales (M, B, D)", hypotheses, scores, scales)
    known_name("kernel", kernel, KERNELS)
    generator, f = torch.Generator().manual_seed(seed), to_float32(hypotheses)
    member, index = _drawn(scores, count, generator).to(f.device), torch.arange(f.shape[1], device=f.device)
    uniform = torch.rand(count, *f.shape[1:], generator=generator, dtype=torch.float64)
    if kernel == "gaussian":
        noise = torch.special.ndtri(uniform.clamp_min(torch.finfo(uniform.dtype).tiny))
    else:  # the inverse of the distribution function
        noise = (uniform - 0.5).sign() * -torch.log1p(-2 * (uniform - 0.5).abs()).clamp_min(-40)
    return f[member, index] + to_float32(scales)[member, index] * noise.to(f)


def _drawn(scores: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw the member of each sample in proportion to the scores, (M, B) -> (count, B)."""
    if count < 1:
        raise UsageError(f"Expected at least 1 sample per example, got {count}.")
    return torch.multinomial(scores.T.cpu().double(), count, replacement=True, generator=generator).T


class Mixture(NamedTuple):
    """A calibrated mixture of hypotheses, see `em_step`.

    Attributes:
        weights: the weight of each hypothesis, (M,), which sums to 1
        scales: the standard deviation of each hypothesis, (M,), in the units of the targets
        prior: the mean score of each hypothesis before calibration, (M,)
    """

    weights: Tensor
    scales: Tensor
    prior: Tensor

    def calibrated(self, scores: Tensor) -> Tensor:
        """Return scores in proportion to s_m weights_m / prior_m, (M, B) -> (M, B), which sum to 1 over M [I]."""
        found = scores * (self.weights / self.prior.clamp_min(torch.finfo(self.prior.dtype).tiny)).unsqueeze(1)
        return found / found.sum(0)


def em_step(hypotheses: Tensor, scores: Tensor, target: Tensor, *, scale: float | None = None) -> Mixture:
    """Compute mixture weights and scales of trained hypotheses by one step of expectation maximisation.

    Winner-takes-all training is K-means with one centre per hypothesis; its hard assignment ignores that neighbouring
    hypotheses share targets (Wu et al. 2026, arXiv:2606.26424). One EM step with soft responsibilities
    r_m = s_m N(y; f_m, scale^2) / sum_n s_n N(y; f_n, scale^2) corrects this without training:
    weights_m = mean_B r_m and scales_m^2 = sum_B r_m |y - f_m|^2 / (D sum_B r_m).

    Args:
        hypotheses: f for the examples of a validation or training set, (M, B, D).
        scores: s, (M, B).
        target: (B, D).
        scale: The standard deviation in the first step; by default, the oracle RMSE, the residual of K-means.

    Raises:
        UsageError: If the shapes do not match, or there are fewer examples than hypotheses.

    >>> f, s = torch.tensor([[[0.0], [0.0]], [[4.0], [4.0]]]), torch.full((2, 2), 0.5)
    >>> em_step(f, s, torch.tensor([[1.0], [3.0]])).scales
    tensor([1.0695, 1.0695])
    """
    check_shapes("hypotheses (M, B, D), scores (M, B) and target (B, D)", hypotheses, scores, target)
    if hypotheses.shape[1] < len(hypotheses):
        raise UsageError(
            f"Expected at least as many examples as hypotheses, got {hypotheses.shape[1]} examples and "
            f"{len(hypotheses)} hypotheses. Use more examples or fewer members."
        )
    f, s, y = to_float32(hypotheses), to_float32(scores), to_float32(target)
    tiny = torch.finfo(f.dtype).tiny
    first = oracle_squared_errors(f, y).mean().sqrt() if scale is None else f.new_tensor(scale)
    distance = (f - y).square().sum(2)  # (M, B)
    r = (s.log() - distance / (2 * first.clamp_min(tiny**0.5).square())).softmax(0)
    spread = (r * distance).sum(1) / (f.shape[2] * r.sum(1)).clamp_min(tiny)
    return Mixture(r.mean(1), spread.sqrt(), s.mean(1))

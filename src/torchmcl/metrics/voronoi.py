"""The density of weighted hypotheses by truncated kernels on their Voronoi cells.

The axes are M members (hypotheses), B examples and D target values.
"""

import torch
from torch import Tensor

from torchmcl.errors import UsageError
from torchmcl.metrics.shapes import check_shapes
from torchmcl.structures.output import to_float32


def voronoi_log_density(
    hypotheses: Tensor, scores: Tensor, target: Tensor, *, bandwidth: float, directions: int = 256, seed: int = 0
) -> Tensor:
    """Compute the log-density of targets under truncated kernels on the Voronoi cells of the hypotheses.

    Implements the estimator of Letzelter et al. 2024 (Voronoi-WTA): log(s_m K_h(y - f_m) / V_m), where m is the
    hypothesis closest to y, K_h is the normal density with standard deviation h, and V_m is its mass in the Voronoi
    cell of m. V_m is the mean, over directions u, of the mass up to the cell's boundary in this direction, P(D/2,
    r(u)^2 / (2 h^2)) with the regularised incomplete gamma function P. For D = 1, there are two directions, and V_m is
    exact. Cells are not bounded by a domain.

    Args:
        hypotheses: f, (M, B, D), all different.
        scores: s, the probability of each cell, (M, B).
        target: (B, D).
        bandwidth: h, in the units of the targets.
        directions: The number of random directions for D > 1.
        seed: The seed of the directions.

    Returns:
        Log-densities, (B,).

    Raises:
        UsageError: If the shapes do not match, or the bandwidth is not positive.

    >>> f, s = torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[0.3], [0.7]])
    >>> voronoi_log_density(f, s, torch.tensor([[2.0]]), bandwidth=0.1).exp()  # 0.7 / (0.1 sqrt(2 pi))
    tensor([2.7926])
    """
    check_shapes("hypotheses (M, B, D), scores (M, B) and target (B, D)", hypotheses, scores, target)
    check_bandwidth(bandwidth)
    f, s, y = to_float32(hypotheses), to_float32(scores), to_float32(target)
    distance, cell = (f - y).square().sum(2).min(0)  # (B,)
    index = torch.arange(len(y), device=y.device)
    rays = unit_vectors(f.shape[2], directions, seed).to(f)
    mass = ray_mass(cell_radius(f, f[cell, index], rays.unsqueeze(1)), bandwidth, f.shape[2]).mean(0)  # (B,)
    log_kernel = -distance / (2 * bandwidth**2) - f.shape[2] * torch.log(
        y.new_tensor(bandwidth * (2 * torch.pi) ** 0.5)
    )
    return s[cell, index].log() + log_kernel - mass.log()


def voronoi_nll(
    hypotheses: Tensor, scores: Tensor, target: Tensor, *, bandwidth: float, directions: int = 256, seed: int = 0
) -> Tensor:
    """Compute the negative log-likelihood of targets, the negative mean of `voronoi_log_density`, a scalar.

    >>> f, s = torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[0.3], [0.7]])
    >>> voronoi_nll(f, s, torch.tensor([[2.0]]), bandwidth=0.1)
    tensor(-1.0270)
    """
    log_density = voronoi_log_density(hypotheses, scores, target, bandwidth=bandwidth, directions=directions, seed=seed)
    return -log_density.mean()


def check_bandwidth(bandwidth: float) -> None:
    """Raise UsageError unless a bandwidth is positive and finite."""
    if not 0 < bandwidth < float("inf"):
        raise UsageError(f"Expected a bandwidth > 0, got {bandwidth}.")


def unit_vectors(D: int, count: int, seed: int = 0, *, generator: torch.Generator | None = None) -> Tensor:
    """Return random unit vectors, (count, D), or both directions for D = 1."""
    if D == 1:
        return torch.tensor([[1.0], [-1.0]])
    generator = generator or torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, D, generator=generator), dim=1)


def cell_radius(f: Tensor, start: Tensor, rays: Tensor) -> Tensor:
    """Return the distance from hypotheses to the boundary of their Voronoi cells in the direction of rays.

    The boundary to another hypothesis g lies at |g - f|^2 / (2 <u, g - f>), if the scalar product is positive.

    Args:
        f: All hypotheses, (M, B, D).
        start: The hypotheses of the cells, (…, B, D).
        rays: Unit vectors u, (R, …, B or 1, D).

    Returns:
        (R, …, B); infinite if the cell is not bounded in this direction.
    """
    radius = None
    for other in f:  # one member at a time, because all members at once need M times the memory
        away = other - start
        along = (rays * away).sum(-1)
        found = torch.where(along > 0, away.square().sum(-1) / (2 * along), torch.inf)
        radius = found if radius is None else radius.minimum(found)
    return radius  # type: ignore[return-value]


def ray_mass(radius: Tensor, bandwidth: float, D: int) -> Tensor:
    """Return the mass of a normal distribution up to a radius, P(D/2, r^2 / (2 h^2))."""
    z = (radius / bandwidth).square() / 2
    return torch.special.gammainc(torch.full_like(z, D / 2), z).clamp_min(torch.finfo(z.dtype).tiny)

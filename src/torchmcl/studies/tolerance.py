"""How far the errors of a result may differ if its weights are evaluated on another machine.

Probabilities then differ by rounding, so that the order of two almost equal ones can change. The bounds below assume
that two probabilities, or two scores, change their order only if they differ by less than `MARGIN`. The lower bound of
an error decides every such case in favour of the ensemble, the upper bound decides every such case against it.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from torchmcl.analysis.evaluation import separation
from torchmcl.metrics import harmonic_mean
from torchmcl.studies.execute import predict
from torchmcl.studies.records import Trained, require_labels, scored
from torchmcl.tasks.labels import percent

MARGIN = 1e-3
Bounds = tuple[float, float]  # the least and the largest value, in percent
NONE: Bounds = (inf, -inf)  # bounds that no value meets


def lead(probabilities: Tensor, target: Tensor, rank: int = 1) -> Tensor:
    """Return by how much the target's probability exceeds the `rank`-th largest of the others, (…, N, C) -> (…, N).

    >>> lead(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([1])), lead(torch.eye(3)[:1], torch.tensor([1]), rank=3)
    (tensor([-0.2000]), tensor([inf]))
    """
    if rank >= probabilities.shape[-1]:
        return torch.full(probabilities.shape[:-1], inf)
    index = target[:, None].expand(*probabilities.shape[:-1], 1)
    others = probabilities.scatter(-1, index, -inf).topk(rank, dim=-1).values[..., -1]
    return probabilities.gather(-1, index)[..., 0] - others


def error_bounds(leads: Tensor) -> Bounds:
    """Return the bounds of the share of examples on which all members are wrong, given their leads (M, N).

    >>> error_bounds(torch.tensor([[0.5, 0.0, -0.5, -0.5]]))
    (50.0, 75.0)
    """
    low, high = ((leads <= limit).all(0).double().mean() for limit in (-MARGIN, MARGIN))
    return percent(low), percent(high)


def metric_bounds(trained: Trained) -> dict[str, Any]:
    """Return the bounds of errors in the metrics of an evaluation."""
    if trained.examples.continuous:
        names = ("oracle_rmse", "rmse")
        each = [number_bounds(error) for error in trained.metrics["members"]]
        return {**{name: number_bounds(trained.metrics[name]) for name in names}, "members": each}
    if trained.combined is None:
        return {name: mask_bounds(trained.metrics[name]) for name in ("oracle_error", "top1_error")}
    members, combined, target = require_labels(trained.members), trained.combined, trained.examples.target
    leads = lead(members[:, :, : combined.shape[1]], target)
    oracle, top1 = error_bounds(leads), error_bounds(lead(combined, target)[None])
    return {
        "oracle_error": oracle,
        "oracle_error_strict": error_bounds(lead(members, target)),
        "top1_error": top1,
        "harmonic_mean": tuple(
            percent(harmonic_mean(*torch.tensor(both) / 100)) for both in zip(oracle, top1, strict=True)
        ),
        "members": [error_bounds(own[None]) for own in leads],
    }


def number_bounds(error: float) -> Bounds:
    """Return the bounds of an error in the units of the targets."""
    return (1 - MARGIN) * error, (1 + MARGIN) * error


def mask_bounds(error: float) -> Bounds:
    """Return the bounds of an error in percent of pixels."""
    return error - 100 * MARGIN, error + 100 * MARGIN


def top_m_bounds(trained: Trained, argument: str) -> Bounds:
    """Return the bounds of the record `top_m`."""
    rank = int(argument or len(require_labels(trained.members)))
    return error_bounds(lead(require_labels(trained.combined), trained.examples.target, rank)[None])


def training_bounds(trained: Trained, argument: str) -> dict[str, Any]:
    """Return the bounds of the record `training`, for the assignment of the training examples as well."""
    again = predict(trained.specialists, trained.spec, trained.data, "train")
    if again.combined is None:
        return {"top1_error": mask_bounds(again.metrics["top1_error"])}
    method, memory, target = trained.specialists.method, trained.specialists.memory, again.examples.target
    members = require_labels(again.members)
    flags = memory.flags[target].T.cpu() if memory is not None and memory.fixed else None
    of_target = members.gather(2, target[None, :, None].expand(len(members), -1, 1))[:, :, 0]
    total, own = own_error_bounds(lead(members[:, :, : method.classes], target), of_target, method.k, flags)
    return {"top1_error": error_bounds(lead(again.combined, target)[None]), "own_error": total, "own_errors": own}


def own_error_bounds(
    leads: Tensor, of_target: Tensor, k: int, flags: Tensor | None = None
) -> tuple[Bounds, list[Bounds]]:
    """Return the bounds of the error on assigned examples: of all members, and of each member.

    Args:
        leads: the leads of the members (M, N)
        of_target: the members' probabilities of the target (M, N), the k largest of which decide the assignment
        k: number of members that take each example
        flags: bool (M, N), the assignment by a fixed memory, or None

    Returns:
        The bounds of all members and of each member; those of a member that may have no example are infinite.
    """
    if flags is None:
        members, examples = of_target.shape
        first = [lead(of_target.T, torch.full((examples,), m), k) for m in range(members)]  # over the other members
        rank = torch.stack(first)
        taken, open_ = rank > MARGIN, rank.abs() <= MARGIN
    else:
        taken, open_ = flags, torch.zeros_like(flags)
    wrong, maybe = leads <= -MARGIN, leads <= MARGIN
    free = (k - taken.sum(0)).clamp_min(0) * open_.any(0)  # members that take an example in addition to `taken`
    low = (taken & wrong).sum(0) + (free - (open_ & ~wrong).sum(0)).clamp_min(0)
    high = (taken & maybe).sum(0) + torch.minimum(free, (open_ & maybe).sum(0))
    count = (taken.sum(0) + free).sum()
    total = percent(low.sum() / count), percent(high.sum() / count)
    return total, [_member_bounds(*rows) for rows in zip(taken, open_, wrong, maybe, strict=True)]


def _member_bounds(taken: Tensor, open_: Tensor, wrong: Tensor, maybe: Tensor) -> Bounds:
    """Return the bounds of one member's error; the least has all open examples that may be right, and no others."""
    if not taken.any():
        return -inf, inf
    low = (taken & wrong).sum() / (taken | (open_ & ~wrong)).sum()
    return percent(low), percent(((taken | open_) & maybe).sum() / (taken | (open_ & maybe)).sum())


def unseen_bounds(trained: Trained, argument: str, *, features: bool = True) -> dict[str, Any]:
    """Return the bounds of the record `unseen`: all scores of the test set are raised, or lowered, by the margin.

    For scores with a larger range than probabilities, the margin is relative to their standard deviation.
    """
    seen, other = scored(trained, features=features), scored(trained, argument, features=features)
    bounds = {}
    for name in seen.scores:
        margin = MARGIN * max(1.0, float(seen.get(name).double().std()))
        shifted = [separation(seen.get(name) + shift, other.get(name)) for shift in (-margin, margin)]
        bounds[name] = {measure: tuple(sorted(one[measure] for one in shifted)) for measure in shifted[0]}
    return bounds


def cost_bounds(trained: Trained, argument: str) -> Bounds:
    """Return bounds that no other cost meets; it is counted, not computed from predictions."""
    return NONE


# The records that can be computed again from weights, without the run folder.
RECORDS: dict[str, Callable[[Trained, str], Any]] = {
    "top_m": top_m_bounds,
    "training": training_bounds,
    "unseen": unseen_bounds,
    "unseen_outputs": partial(unseen_bounds, features=False),
    "cost": cost_bounds,
}

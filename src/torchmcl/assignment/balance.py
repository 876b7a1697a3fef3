"""Balanced assignment: the least total regret of a batch, with limits on how much each member takes."""

from dataclasses import replace
from math import inf
from typing import cast

import torch
from torch import Tensor, distributed, nn

from torchmcl._utils.distributed import all_gather, is_distributed
from torchmcl.assignment.rules import Assignment, TopK, soft_top_k, top_k, transport
from torchmcl.errors import UsageError
from torchmcl.structures.state import State

EXACT = 2048  # the largest number of members times examples that is solved exactly
MATCHED = 256  # the largest number of examples that is solved as a matching, which is slower than a program beyond
STEPS = 30  # of Sinkhorn's algorithm
COLDEST = 1e-3  # its last temperature, relative to the mean cost
TOLERANCE = 1e-9


class Balanced(nn.Module):
    """Assign k members to each example with the least total regret, such that every member takes an equal share.

    Without limits, the least total regret is that of `TopK`, and a member that is ahead early can take everything. Here
    each member takes between 1 - slack and 1 + slack times an equal share, rounded to whole examples, of each batch and
    of all batches so far. The buffer `counts` (M,) holds what each member took in earlier batches for which the state
    allowed recording. A batch that is not recorded, for example in validation, is balanced by itself.

    This is a transportation problem. On the CPU, batches with up to `EXACT` pairs of a member and an example are
    solved exactly. The others are solved on their device by Sinkhorn's algorithm and rounding, whose total regret is
    slightly larger. An example with sample weight n counts as n examples, and can therefore be split: its weights can
    be fractions that sum to k. In distributed training, all processes gather the regrets of the whole batch, so that
    they make the same choice as a single process.

    Args:
        k: The number of members that take each example.
        slack: The permitted deviation from an equal share, relative to it. With infinity, the rule is `TopK`.

    >>> Balanced(1)(torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.5, 0.4, 0.6, 0.9]]), State())
    tensor([[1., 0., 0., 1.],
            [0., 1., 1., 0.]])
    """

    counts: Tensor

    def __init__(self, k: int, slack: float = 0.0) -> None:
        super().__init__()
        if not slack >= 0:
            raise UsageError(f"Expected slack >= 0, got {slack}.")
        self.k = k
        self.slack = slack
        self.register_buffer("counts", torch.zeros(0, dtype=torch.float64))

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"k={self.k}, slack={self.slack}"

    def forward(self, regret: Tensor, state: State) -> Tensor:
        """Return weights (M, B) for regrets (M, B), or both (M, B, T) for several targets per example."""
        if self.slack == inf:
            return TopK(self.k)(regret.detach(), state)
        if regret.ndim > 2:
            ones = regret.new_ones(regret.shape[1:])
            weight = ones if state.sample_weight is None else ones * state.sample_weight[:, None]
            weight = weight if state.loss_weight is None else weight * (state.loss_weight > 0)
            each = self(regret.flatten(1), replace(state, sample_weight=weight.flatten(), loss_weight=None))
            return cast(Tensor, each).reshape(regret.shape)
        wide = torch.float32 if regret.device.type == "mps" else torch.float64  # MPS has no float64
        weight = torch.ones_like(regret[0]) if state.sample_weight is None else state.sample_weight
        record, table = state.recording(self), torch.cat([regret.detach().to(wide), weight[None].to(wide)]).T
        table, mine = _gather(table) if record else (table, slice(None))
        weight = table[:, -1]
        before = self.counts.to(table) if record and len(self.counts) else table.new_zeros(len(regret))
        low, high = limits(before, weight, self.k, self.slack)
        weights = assign_within(table[:, :-1].T, self.k, low, high, weight)
        if record:
            self.counts = before + weights @ weight
        return weights[:, mine].to(regret.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
        if (saved := state_dict.get(prefix + "counts")) is not None:  # empty until the first batch is recorded
            self.counts = torch.empty_like(saved, device=self.counts.device)
        super()._load_from_state_dict(state_dict, prefix, *args)


def least_regret(k: int, balance: str | bool | None = None, slack: float = 0.0) -> Assignment:
    """Return `Balanced(k, slack)` if `balance` is "assignment" or "both", and `TopK(k)` otherwise.

    >>> least_regret(2), least_regret(2, "assignment", 0.5)
    (TopK(k=2), Balanced(k=2, slack=0.5))

    Raises:
        UsageError: if there is a slack without balanced assignment.
    """
    if balance in ("assignment", "both"):
        return Balanced(k, slack)
    if slack:
        raise UsageError("The option slack has no effect without balance='assignment'. Use both, or neither.")
    return TopK(k)


def limits(before: Tensor, weight: Tensor, k: int, slack: float) -> tuple[Tensor, Tensor]:
    """Return how much of a batch each member must take at least and can take at most, (M,) each.

    Both are rounded to whole examples. If the limits for all batches so far contradict those for the batch, they are
    widened, and the batch makes the counts as even as it can.

    Args:
        before: (M,), what each member took of earlier batches.
        weight: (B,), the weight of each example.
        k: The number of members that take each example.
        slack: The permitted deviation from an equal share, relative to it.

    >>> limits(torch.tensor([3.0, 1.0]), torch.ones(5), k=1, slack=0)
    (tensor([2., 3.]), tensor([2., 3.]))
    """
    total, unit = weight.sum(), _unit(weight)
    low, high, share = max(1 - slack, 0), 1 + slack, k * total / len(before)

    def down(x: Tensor) -> Tensor:
        return (x / unit + TOLERANCE).floor() * unit

    least, most = down(low * share), torch.minimum(-down(-high * share), total)
    even = _level(before, least, most, k * total)
    share = share + before.mean()
    lower = torch.minimum(low * share, even) - before
    upper = torch.maximum(high * share, even) - before
    return down(lower.clamp(least, most)), torch.minimum(-down(-upper.clamp(least, most)), most)


def assign_within(regret: Tensor, k: int, low: Tensor, high: Tensor, weight: Tensor) -> Tensor:
    """Return the weights (M, B) with the least total regret for which each member's load is within limits.

    Args:
        regret: (M, B).
        k: The number of members that take each example.
        low: (M,), the least load of each member.
        high: (M,), the largest load of each member; the load is the sum of the weights of the examples that it takes.
        weight: (B,), the weight of each example.
    """
    best = top_k(-regret, k, dim=0).to(regret.dtype)
    on_cpu = regret.device.type == "cpu"
    # The first choice is often within the limits. On other devices, looking would wait for the device.
    if on_cpu and bool(((best @ weight - low > -TOLERANCE) & (high - best @ weight > -TOLERANCE)).all()):
        return best
    cost = regret.nan_to_num(0, 1e30, -1e30)
    cost = cost - cost.amin(0)
    cost = cost / cost.amax().clamp_min(_tiny(cost))
    if on_cpu and cost.numel() <= EXACT:
        if k == 1 and len(weight) <= MATCHED and bool((weight == 1).all()):
            return _matched(cost, low.long(), high.long())
        return torch.where(weight > 0, transport(cost.T, k, low, high, weight).T, best)
    return _rounded(cost + _prices(cost, k, low, high, weight), k, low, high, weight)


def _matched(cost: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the weights (M, B) of the least cost (M, B) for k = 1: each example is matched with a place of a member.

    A member has as many places as its largest load (M,). Those of its least load (M,) are filled first, because no
    chain of moves between members saves more than M costs, which are at most 1.
    """
    from scipy.optimize import linear_sum_assignment

    member = torch.arange(len(cost)).repeat_interleave(high)
    required = torch.arange(len(member)) - (high.cumsum(0) - high)[member] < low[member]
    place, example = linear_sum_assignment((cost[member] - (len(cost) + 1) * required[:, None]).numpy())
    takes = torch.zeros_like(cost)
    takes[member[torch.from_numpy(place)], torch.from_numpy(example)] = 1
    return takes


def _prices(cost: Tensor, k: int, low: Tensor, high: Tensor, weight: Tensor) -> Tensor:
    """Return prices (M, 1) that, added to the cost (M, B), bring the members' loads close to their limits.

    Sinkhorn's algorithm for limits on the marginals (Chizat et al. 2018), with a falling temperature: a member has the
    price 0 if its load is within the limits, and otherwise the price that moves its load to the nearest limit.
    """
    price = torch.zeros_like(cost[:, 0])
    for step in range(STEPS):
        temperature = cost.mean().clamp_min(_tiny(cost)) * COLDEST ** (step / (STEPS - 1))
        scores = -(cost + price[:, None]) / temperature
        shares = soft_top_k(scores, k)
        unpriced = (shares @ weight).clamp_min(_tiny(cost)).log() + price / temperature
        price = temperature * torch.zeros_like(price).clamp(unpriced - high.log(), unpriced - low.log())
        price = price.clamp(-len(price), len(price))  # costs are at most 1
    return price[:, None]


def _rounded(cost: Tensor, k: int, low: Tensor, high: Tensor, weight: Tensor) -> Tensor:
    """Return weights 0 or 1 (M, B) of a low cost (M, B) within the limits, given costs that are close to them.

    Each member has a target within its limits. In each round, members above their target pass the examples that cost
    least to move to members below theirs. A member that has reached its target never falls below it again, so that M
    rounds are enough for k = 1, and almost always for other k.
    """
    member = torch.arange(len(cost), device=cost.device)[:, None]
    takes = top_k(-cost, k, dim=0)
    target = _targets(takes.to(cost.dtype) @ weight, k, low, high, weight)
    for _ in member:
        excess = takes.to(cost.dtype) @ weight - target
        if cost.device.type == "cpu" and not bool((excess > TOLERANCE).any()):
            break
        now, source = cost.masked_fill(~takes | (excess <= TOLERANCE)[:, None], -inf).max(0)
        then, sink = cost.masked_fill(takes | (excess >= -TOLERANCE)[:, None], inf).min(0)
        leaves = (member == source) & ((then - now) < inf)
        order = (then - now).argsort(stable=True)
        first = (leaves * weight)[:, order].cumsum(1) <= excess[:, None] + TOLERANCE
        leaves &= torch.empty_like(first).scatter_(1, order.expand_as(first), first)
        takes = (takes & ~leaves) | ((member == sink) & leaves.any(0))
    return takes.to(cost.dtype)


def _targets(load: Tensor, k: int, low: Tensor, high: Tensor, weight: Tensor) -> Tensor:
    """Return loads (M,) close to `load` (M,), in whole examples, within the limits and with the sum that is needed."""
    unit = _unit(weight)
    target = (load + _level(-load, low, high, k * weight.sum())).clamp(low, high) / unit
    whole = (target + 1e-6).floor()
    rank = (whole - target).argsort(stable=True).argsort()
    return (whole + (rank < (target - whole).sum() - 1e-6)) * unit


def _level(base: Tensor, low: Tensor, high: Tensor, total: Tensor) -> Tensor:
    """Return the level x for which the sum of clamp(x - base, low, high) over the members is `total`."""
    knots = torch.cat([base + low, base + high]).sort().values
    sums = (knots[:, None] - base).clamp(low, high).sum(1)
    at = torch.searchsorted(sums, total[None]).clamp(1, len(sums) - 1)  # (1,): a scalar index would be read back
    part = (total - sums[at - 1]) / (sums[at] - sums[at - 1]).clamp_min(_tiny(sums))
    return torch.lerp(knots[at - 1], knots[at], part.clamp(0, 1))[0]


def _unit(weight: Tensor) -> Tensor:
    """Return the weight of a whole example: 1, or the largest weight if it is smaller."""
    return weight.amax().clamp(_tiny(weight), 1)


def _gather(table: Tensor) -> tuple[Tensor, Tensor | slice]:
    """Return the rows of all processes, and which of them belong to this one."""
    if not is_distributed():
        return table, slice(None)
    rank = table.new_full((len(table), 1), distributed.get_rank())
    everyone = all_gather(torch.cat([table, rank], 1))
    return everyone[:, :-1], everyone[:, -1] == distributed.get_rank()


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny

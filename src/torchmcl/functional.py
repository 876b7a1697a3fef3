"""Functions of losses and scores for your own training loop, without a network, memory or trainer of this package."""

from dataclasses import replace
from numbers import Integral

import torch
from torch import Tensor

from torchmcl.assignment import Annealed, Assignment, Balanced, Evolving, Relaxed, TopK
from torchmcl.errors import UsageError, known_name
from torchmcl.structures.output import describe, to_float32
from torchmcl.structures.state import State
from torchmcl.tasks.scores import score_loss, score_probabilities

__all__ = ["score_loss", "score_probabilities", "winner_takes_all"]

MODES = ("hard", "top_k", "balanced", "relaxed", "evolving", "annealed")


def winner_takes_all(
    losses: Tensor,
    mode: str | Assignment = "hard",
    *,
    k: int = 1,
    slack: float = 0.0,
    eps: float = 0.05,
    temperature: float | None = None,
    epoch: int | None = None,
    epochs: int | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Assign examples to members by their losses l and return the weighted loss, mean_B sum_m w_m l_m.

    | mode | weights w | method |
    |---|---|---|
    | hard | 1 for the member with the lowest loss | `smcl` with k = 1 |
    | top_k | 1 for the k members with the lowest losses | `smcl` |
    | balanced | 1 for k members: the least total loss with equal shares of all members | `smcl` with `balance` |
    | relaxed | 1 - eps for the winners; the others share k eps | `relaxed` |
    | evolving | 1 for the n best members; n falls from M to k over training | `evolving` |
    | annealed | softmax(-l / T), and hard for T < 5e-4 | `annealed` |

    Args:
        losses: The loss of each member on each example, (M, B), of any origin. If examples have several targets,
            (M, B, T): each target is assigned, and the loss of an example is the mean over its valid targets.
        mode: The name of a mode, or an assignment rule, which has its own options. The mode balanced balances each
            batch by itself. `assignment.Balanced` remembers what each member took: create it once, and pass it as the
            mode of every batch. Like any rule with a memory, it records a batch only if gradients are enabled.
        k: The number of winners per example or target, except in the mode hard.
        slack: The permitted deviation from an equal share in the mode balanced, relative to it.
        eps: The weight that each winner gives up in the mode relaxed.
        temperature: The temperature T in the mode annealed. By default, T falls from 0.5 to 5e-4 in the first 80% of
            the epochs; see `assignment.Annealed`.
        epoch: The epoch, counted from 1; required by evolving, and by annealed without a temperature.
        epochs: The number of epochs, required as `epoch` is.
        mask: Which targets are valid, bool (B, T); examples without a valid target are left out. The losses of other
            targets are ignored, but must be computed from finite values, or their gradient is NaN.

    Returns:
        The loss, a scalar, and the weights, which have the shape of the losses and carry no gradient.

    Raises:
        UsageError: If an argument is unknown or missing, or the losses have the wrong shape or, on the CPU, are not
            finite.

    >>> losses = torch.tensor([[3.0, 1.0], [2.0, 4.0]])
    >>> winner_takes_all(losses)
    (tensor(1.5000), tensor([[0., 1.],
            [1., 0.]]))
    >>> winner_takes_all(losses, "annealed", temperature=1.0)[1]
    tensor([[0.2689, 0.9526],
            [0.7311, 0.0474]])
    >>> rule = Balanced(k=1)
    >>> for _ in range(3):
    ...     loss, weights = winner_takes_all(losses[:, :1], rule)
    >>> rule.counts
    tensor([1., 2.], dtype=torch.float64)
    """
    if not callable(mode):
        known_name("mode", mode, MODES)
    if not isinstance(mode, str) and (k, slack, eps, temperature) != (1, 0.0, 0.05, None):
        raise UsageError("An assignment rule has its own options. Pass k and slack to the rule.")
    rule = _rule(mode, k, slack, eps, temperature) if isinstance(mode, str) else mode
    if mode == "hard" and k != 1:
        raise UsageError(f"The mode 'hard' has one winner, got k={k}. Use mode='top_k'.")
    valid = _check(losses, mask)
    if not (isinstance(k, Integral) and 1 <= k <= len(losses)):
        raise UsageError(f"Expected 1 <= k <= {len(losses)} members, got k={k}.")
    if (mode == "evolving" or (mode == "annealed" and temperature is None)) and (epoch is None or epochs is None):
        raise UsageError(f"The mode {mode!r} changes over training. Pass epoch, counted from 1, and epochs.")
    for name, count in (("epoch", epoch), ("epochs", epochs)):
        if count is not None and count < 1:
            raise UsageError(f"Expected {name} >= 1, got {count}. Epochs are counted from 1.")
    losses = to_float32(losses)
    record = not isinstance(mode, str) and torch.is_grad_enabled() and getattr(rule, "training", True)
    state = State(1 if epoch is None and isinstance(mode, str) else epoch, epochs, record=record)
    if valid is not None:
        losses = losses.masked_fill(~valid, 0)
        counts = valid.sum(1)
        weight = valid * (valid.shape[1] / counts.clamp_min(1)).unsqueeze(1)
        state = replace(state, sample_weight=(counts > 0).to(losses.dtype), loss_weight=weight)
    with torch.no_grad():
        weights = rule(losses, state)
        weights = weights if valid is None else weights * valid
    return state.mean((weights * losses).sum(0)), weights


def _check(losses: Tensor, mask: Tensor | None) -> Tensor | None:
    """Check the arguments of `winner_takes_all` and return which targets are valid, bool (B, T), or None for (M, B)."""
    if not isinstance(losses, Tensor) or losses.ndim not in (2, 3) or not losses.is_floating_point():
        raise UsageError(
            f"Expected floating point losses (M, B), members first, or (M, B, T), got {describe(losses)}. "
            "Compute one loss per member and example: use reduction='none', and average over the other axes."
        )
    if 0 in losses.shape:
        raise UsageError(f"Expected at least one member and example, got losses {describe(losses)}.")
    if losses.ndim == 2 and mask is None:
        valid = None
    elif mask is None:
        valid = losses.new_ones(losses.shape[1:], dtype=torch.bool)
    elif isinstance(mask, Tensor) and mask.dtype == torch.bool and losses.ndim == 3 and mask.shape == losses.shape[1:]:
        valid = mask
    else:
        raise UsageError(
            f"Expected a boolean mask (B, T) for losses (M, B, T), got {describe(mask)} for losses {describe(losses)}."
        )
    if losses.device.type == "cpu" and not bool((losses if valid is None else losses[:, valid]).isfinite().all()):
        raise UsageError("A loss is NaN or infinite. Check the targets and the learning rate.")
    return valid


def _rule(mode: str, k: int, slack: float, eps: float, temperature: float | None) -> Assignment:
    if mode == "balanced":
        return Balanced(k, slack)
    if mode == "relaxed":
        if not 0 <= eps <= 1:
            raise UsageError(f"Expected 0 <= eps <= 1, got {eps}.")
        return Relaxed(k, eps)
    if mode == "evolving":
        return Evolving(k)
    if mode == "annealed":
        if temperature is None:
            return Annealed(k)
        if not temperature >= 0:
            raise UsageError(f"Expected temperature >= 0, got {temperature}.")
        return Annealed(k, temperature, decay=1.0)
    return TopK(k)

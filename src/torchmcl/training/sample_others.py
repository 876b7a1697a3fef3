"""Sparse training: a member sees the examples that it takes and a random part of those that it leaves."""

from dataclasses import dataclass, replace
from math import log
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torchmcl import methods
from torchmcl.data.transforms import Draw
from torchmcl.errors import UsageError
from torchmcl.methods import Method
from torchmcl.structures.output import to_float32
from torchmcl.structures.state import State

Correction = Literal["prior", "weight"]
OTHERS = 2**34  # passed to `seed_of` in place of a rank; see `data.loader.AUGMENT`
LEAST = 2  # batch statistics need two examples


class Sample(NamedTuple):
    """The examples of a batch that each member sees.

    Attributes:
        parts: M of (B_m,), the positions of these examples in the batch, in ascending order, or None for all.
        weight: (M, B), the weight of each example in each member's loss, 0 for examples that a member does not see.
        shift: The number that is added to the auxiliary output during training.
    """

    parts: list[Tensor | None]
    weight: Tensor
    shift: float

    @classmethod
    def complete(cls, taken: Tensor) -> "Sample":
        """Return the sample of all examples, given the weight (M, B) with which each member takes each example."""
        return cls([None] * len(taken), torch.ones_like(taken), 0.0)

    def corrected(self, logits: Tensor) -> Tensor:
        """Add `shift` to the auxiliary output, which is the last one: (M, B, C, …) -> (M, B, C, …)."""
        shift = torch.zeros(logits.shape[2:3], device=logits.device)
        shift[-1] = self.shift
        return to_float32(logits) + shift.reshape(-1, *[1] * (logits.ndim - 3))

    def of_member(self, m: int, logits: Tensor, state: State) -> tuple[Tensor, State]:
        """Return a member's corrected logits (B, C, …), and the state with the weights of its examples (1, B)."""
        return self.corrected(logits[None])[0], replace(state, member_weight=self.weight[m : m + 1])


@dataclass(frozen=True)
class SampleOthers:
    """Sample each example that a member leaves with probability r, and correct the member's loss for it.

    The dense loss of a member has its minimum, for an input that is in class c with probability q(c), at
    p(c) ∝ q(c) for the classes that the member takes and p(auxiliary) ∝ gamma q(left). Sampling replaces q(left) by
    r q(left). There are two corrections:

    - "prior" adds log r to the auxiliary logit z during training, as Hinton et al. 2015 corrected the dustbin class of
      their specialists. The minimum is then at r exp(z) ∝ r gamma q(left), which is that of the dense loss.
    - "weight" divides the cost of the sampled examples by r. The expected gradient is then that of the dense loss.

    Both losses remain means over the complete batch, so that the examples that a member takes have the same weight as
    in dense training.

    Args:
        rate: The probability r.
        correction: "prior" or "weight".

    >>> taken, uniform = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[0.9, 0.1, 0.7]])
    >>> sample = SampleOthers(0.5, "weight")(taken, uniform)
    >>> sample.parts, sample.weight
    ([tensor([0, 1])], tensor([[1., 2., 0.]]))
    """

    rate: float
    correction: Correction = "prior"

    def __call__(self, taken: Tensor, uniform: Tensor) -> Sample:
        """Sample a batch.

        Args:
            taken: (M, B), the weight with which each member takes each example.
            uniform: (M, B), random numbers between 0 and 1.
        """
        others = (taken == 0) & (uniform < self.rate)
        weight = (taken > 0) + others * (1 / self.rate if self.correction == "weight" else 1.0)
        seen = weight > 0
        # Batch statistics, and the synchronisation of gradients between processes, need examples in every part. A
        # part that is too small also gets others, with a weight of zero.
        few = seen.sum(1, keepdim=True) < LEAST
        nearest = torch.where(seen, -1.0, uniform).argsort(1).argsort(1) < LEAST
        seen = seen | (few & nearest)
        return Sample(
            parts=[row.nonzero().squeeze(1) for row in seen],
            weight=weight.to(taken.dtype),
            shift=log(self.rate) if self.correction == "prior" else 0.0,
        )


def uniform_numbers(seed: int, members: int, *, total: int, rank: int, world: int, device: torch.device) -> Tensor:
    """Return the random numbers (M, B) of a step, which do not depend on the device and the number of processes."""
    return Draw(seed, total=total, rows=slice(rank, None, world), device=device).uniform(members).T


def supports_sampling(method: Method) -> bool:
    """Return whether a method has an auxiliary class, and a phase in which the assignment is known in advance.

    >>> [name for name in ("ie", "smcl", "mcl", "amcl") if supports_sampling(methods.build(name))]
    ['amcl']
    """
    return method.auxiliary and getattr(method.new_objective(), "assigns_in_advance", False)


def check_sampling(method: Method, rate: float) -> None:
    """Raise UsageError if examples are sampled (rate < 1) with a method that does not support it."""
    if rate == 1 or supports_sampling(method):
        return
    known = ", ".join(name for name in methods.names() if supports_sampling(methods.build(name)))
    raise UsageError(
        f"The method {method.name} does not support sample_others with these options. Methods that do: {known} (for "
        "class labels, with a memory and unit=image). Omit the option."
    )

"""Branching: members start as copies of one seed network, which the first part of the training trains on all classes.

Li et al. 2022 (Branch-Train-Merge) train language models in this way. The seed network is the first member. In its
phase, the other members see no more examples than batch statistics need.
"""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchmcl._utils.distributed import all_sum
from torchmcl.assignment.rules import balanced, loss_independent
from torchmcl.data.examples import DataSet
from torchmcl.ensemble import Ensemble
from torchmcl.ensemble.exchange import NoExchange
from torchmcl.ensemble.members import BatchedMembers
from torchmcl.errors import UsageError
from torchmcl.methods import Method
from torchmcl.objectives.costs import nothing
from torchmcl.objectives.dataset_pass import outputs
from torchmcl.objectives.objective import Objective, Phases, memory_of
from torchmcl.structures.state import State
from torchmcl.training.evaluate import AnyLoader
from torchmcl.training.recipe import Recipe
from torchmcl.training.sample_others import SampleOthers, supports_sampling

PHASE = "seed"
NO_OTHERS = SampleOthers(0.5, "weight")  # with random numbers of 1, no example that a member leaves is sampled
ROUNDS = 20


@loss_independent
def first_member(regret: Tensor, state: State) -> Tensor:
    """Assign every example to the first member: (M, B) -> (M, B).

    >>> first_member(torch.zeros(2, 3), State())
    tensor([[1., 1., 1.],
            [0., 0., 0.]])
    """
    weights = torch.zeros_like(regret)
    weights[0] = 1
    return weights


def seed_objective(method: Method) -> Objective:
    """Return the objective of the seed network: the cost of taking every example."""
    return Objective(method.task, nothing, first_member)


@torch.no_grad()
def copy_first_member(ensemble: Ensemble, optimizer: Optimizer | None = None) -> None:
    """Copy the weights and buffers of the first member to all members, and the state of their optimiser, if given."""
    states: Any = {} if optimizer is None else optimizer.state
    for part in (ensemble.stems, ensemble.bodies):
        if isinstance(part, BatchedMembers):
            for weight in part.parameters():
                for value in (weight, *states.get(weight, {}).values()):
                    if isinstance(value, Tensor) and value.shape == weight.shape:  # not the number of steps
                        value[1:] = value[0]
            continue
        for module in part[1:]:
            module.load_state_dict(part[0].state_dict())
            for weight, own in zip(part[0].parameters(), module.parameters(), strict=True):
                if weight in states:
                    states[own] = deepcopy(states[weight])


def confusion(ensemble: nn.Module, validation: AnyLoader, classes: int) -> Tensor:
    """Return the sums of the seed network's probabilities (classes, classes): labels are rows, answers are columns."""
    sums = None
    for batch, output in outputs(ensemble, validation):
        predicted = output.logits[0].float().softmax(1)[:, :classes]
        sums = predicted.new_zeros(classes, classes) if sums is None else sums
        sums.index_add_(0, batch.target, predicted)
    assert sums is not None
    return all_sum(sums)


def confused_together(confusion: Tensor, members: int, k: int) -> Tensor:
    """Return owners, bool (classes, M), so that members own classes that are confused with each other.

    Each member owns the same number of classes, to within one. Members start with one class each, the least confused
    with those before. In each round, all classes are assigned so that the confusion with the members' earlier classes
    is as large as possible.

    >>> confused = torch.tensor([[8.0, 0, 2, 0], [0, 9, 0, 1], [3, 0, 7, 0], [0, 2, 0, 8]])
    >>> confused_together(confused, members=2, k=1).int().T
    tensor([[1, 0, 1, 0],
            [0, 1, 0, 1]], dtype=torch.int32)
    """
    similar = (confusion + confusion.T).double()
    similar.fill_diagonal_(0)
    chosen = [int(similar.sum(1).argmax())]
    while len(chosen) < min(members, len(similar)):
        to_chosen = similar[chosen].sum(0)
        to_chosen[chosen] = torch.inf
        chosen.append(int(to_chosen.argmin()))
    owners = similar.new_zeros(len(similar), members)
    owners[chosen, torch.arange(len(chosen))] = 1
    similar.fill_diagonal_(float(similar.max()))  # so that a class tends to stay where it is
    for _ in range(ROUNDS):
        before, owners = owners, balanced(similar @ owners, k).to(similar)
        if torch.equal(before, owners):
            break
    return owners.bool()


def at_random(classes: int, members: int, k: int, *, seed: int) -> Tensor:
    """Return random owners, bool (classes, M); each member owns the same number of classes, to within one."""
    return balanced(torch.rand(classes, members, generator=torch.Generator().manual_seed(seed)), k)


def assign_owners(objective: nn.Module, owners: Tensor) -> None:
    """Fix the memory of an objective so that the classes have these owners (classes, M), and end its first phase."""
    memory = memory_of(objective)
    assert memory is not None
    memory.counts.copy_(owners)
    memory.fix()
    for part in objective.modules():
        if isinstance(part, Phases):
            part.phase = 1


def check_branch(method: Method, ensemble: Ensemble, data: DataSet, recipe: Recipe) -> None:
    """Raise UsageError if members cannot start as copies of a seed network."""
    if recipe.branch is None:
        return
    if not supports_sampling(method):
        raise UsageError(
            f"The method {method.name} does not support branch with these options. Use amcl with a memory, for class "
            "labels or masks with unit=image."
        )
    if not (isinstance(ensemble.exchange, NoExchange) or ensemble.exchange.shared_stem):
        raise UsageError("Members that exchange features cannot branch from one network. Use exchange=none.")
    parts = (part for part in (ensemble.stems, ensemble.bodies) if not isinstance(part, BatchedMembers))
    if any(_shapes(module) != _shapes(part[0]) for part in parts for module in part):
        raise UsageError("Members with different networks cannot branch from one network. Pass one network.")
    by_class = data.train.group is None and not data.train.dense
    if recipe.branch_groups == "confusion" and (data.validation is None or not by_class):
        raise UsageError(
            "The option branch_groups=confusion needs class labels and a validation split. Set data_validation, or use "
            "branch_groups=random."
        )


def _shapes(module: nn.Module) -> dict[str, Any]:
    return {name: value.shape for name, value in module.state_dict().items() if isinstance(value, Tensor)}

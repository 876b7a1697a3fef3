"""Routed inference: a router predicts the owners of each example, and only the most likely owners are queried.

Confidence alone is a poor reason to query another member if the members are specialists (Jitkrittum et al. 2023), so
the owner is predicted first. If all queried members answer "not mine", the next likely owners are queried.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchmcl._utils.validation import validate_types
from torchmcl.ensemble import Ensemble
from torchmcl.ensemble.ensemble import select_examples
from torchmcl.ensemble.exchange import NoExchange
from torchmcl.ensemble.router import Router, router_inputs
from torchmcl.errors import UsageError
from torchmcl.inference.answers import Answer, answer_of, strongest_claim
from torchmcl.methods import Method
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.rejection import Rejection
from torchmcl.tasks import Classification

Claims = Callable[[EnsembleOutput], Tensor]


@dataclass(frozen=True)
class Query:
    """How many members each example queries.

    Args:
        first: number of most likely owners that are queried
        budget: largest number of members that are queried if all queried members answer "not mine"
    """

    first: int
    budget: int


def check_method(method: Method) -> None:
    """Raise UsageError if there is nothing to route, because members own no classes."""
    if not isinstance(method.task, Classification):
        raise UsageError(f"Routing needs a model that predicts one class per example, not {method.task.name}.")
    if method.k >= method.members:
        raise UsageError(
            f"Routing needs members that own classes, but each of the {method.members} members of {method.name} takes "
            "every example. Query all of them, or train another method, such as amcl."
        )


def query_of(method: Method, query: int | None, budget: int | None) -> Query | None:
    """Check how many members to query.

    Args:
        method: the method
        query: number of most likely owners to query, or None to query all members
        budget: largest number of members to query per example; by default twice `query`, or all members if there are
            fewer

    Returns:
        The query, or None if all members are queried.

    Raises:
        UsageError: if a number is out of range, or the method has no owners.

    >>> from torchmcl import methods
    >>> method = methods.build("amcl", members=5)
    >>> query_of(method, 2, None), query_of(method, 5, None)
    (Query(first=2, budget=4), None)
    """
    M = method.members
    validate_types({"query": query, "budget": budget}, query_of)
    if query is None:
        if budget is not None:
            raise UsageError(f"A budget needs a number of members to query first. Pass query, from 1 to {M}.")
        return None
    check_method(method)
    if not 1 <= query <= M:
        raise UsageError(f"Expected query from 1 to {M}, the number of members, got {query}.")
    if budget is not None and not query <= budget <= M:
        raise UsageError(f"Expected budget from {query}, the value of query, to {M} members, got {budget}.")
    return None if query == M else Query(query, min(2 * query, M) if budget is None else budget)


class RoutedEnsemble(nn.Module):
    """An ensemble that queries only the most likely owners of each example.

    Args:
        ensemble: the trained members
        router: the trained router
        method: the method, which combines the outputs of the queried members
        rejection: the calibrated thresholds, which also determine whether a member claims an example
        query: how many members to query
    """

    def __init__(self, ensemble: Ensemble, router: Router, method: Method, rejection: Rejection, query: Query) -> None:
        super().__init__()
        self.ensemble, self.router = ensemble, router
        self.method, self.rejection, self.query = method, rejection, query

    @torch.no_grad()
    def forward(self, x: Tensor) -> Answer:
        """Return the answer for preprocessed examples (B, …); see `query_members` and `routed_answer`."""
        inputs = router_inputs(self.ensemble, x)
        gate = None if self.ensemble.gate is None else self.ensemble.gate(inputs)
        owners = self.router(inputs)
        claims = self._claims if self.method.auxiliary else None
        logits, queried = query_members(self.ensemble, x, inputs, owners, self.query, claims)
        output = self.rejection.calibrated(EnsembleOutput(logits, gate))
        return routed_answer(self.method, output, queried, self.rejection)

    def _claims(self, output: EnsembleOutput) -> Tensor:
        members = self.rejection.calibrated(output).logits.softmax(2).nan_to_num(1.0)
        claim = strongest_claim(self.method, members)
        assert claim is not None
        return self.rejection.claims(claim)


def query_members(
    ensemble: Ensemble, x: Tensor, inputs: list[Tensor], owners: Tensor, query: Query, claims: Claims | None = None
) -> tuple[Tensor, Tensor]:
    """Query the most likely owners of each example; each member receives its examples of a round as one batch.

    Args:
        ensemble: the ensemble, in evaluation mode
        x: preprocessed examples (B, …)
        inputs: what the members' own layers receive, M of (B, …); see `router_inputs`
        owners: the probability that each member owns each example, (M, B); ties go to the first member
        query: how many members to query
        claims: maps outputs with NaN for members that were not queried to whether an example is claimed, bool (B,); by
            default, every example is

    Returns:
        The logits (M, B, C), NaN for members that were not queried, and which members were queried, bool (M, B).
    """
    rank = owners.argsort(dim=0, descending=True, stable=True).argsort(dim=0)
    queried, logits = torch.zeros_like(rank, dtype=torch.bool), None
    chosen = rank < query.first
    for count in range(query.first, query.budget + 1):
        for member, part in _parts(chosen):
            found = _forward(ensemble, member, inputs[member], part, x)
            if logits is None:
                logits = found.new_full((len(rank), len(x), *found.shape[1:]), torch.nan)
            logits[member].index_copy_(0, part, found)
        queried |= chosen
        if claims is None or count == query.budget:
            break
        assert logits is not None
        chosen = (rank == count) & ~claims(EnsembleOutput(logits))
        if not bool(chosen.any()):
            break
    assert logits is not None
    return logits, queried


def _parts(chosen: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each member that is chosen, bool (M, B), with the positions of its examples (B_m,)."""
    examples = chosen.nonzero()[:, 1]  # sorted by member
    for member, part in enumerate(examples.split(chosen.sum(1).tolist())):
        if len(part):
            yield member, part


def _forward(ensemble: Ensemble, member: int, h: Tensor, part: Tensor, x: Tensor) -> Tensor:
    """Return the logits (B_m, C) of one member for a part of the batch."""
    h = h if len(part) == len(h) else select_examples(h, part)
    if isinstance(ensemble.exchange, NoExchange):
        h = ensemble.stems[member](h)
    return ensemble.forward_member(member, h, x)


def routed_answer(method: Method, output: EnsembleOutput, queried: Tensor, rejection: Rejection) -> Answer:
    """Combine the outputs of the queried members into an answer, as if each example had no other members.

    Args:
        method: the method
        output: calibrated logits (M, B, C) and, for a method with a gate, its weights (M, B)
        queried: which members were queried, bool (M, B), at least one per example
        rejection: the thresholds

    Returns:
        An answer whose `members` are NaN for members that were not queried.
    """
    done = replace(rejection, member_temperatures=(), auxiliary_bias=())  # already applied to the output
    M, counts = len(queried), queried.sum(0)
    answers, positions = [], []
    for count in counts.unique().tolist():  # examples with equally many members are combined together
        part = (counts == count).nonzero()[:, 0]
        member = queried[:, part].T.nonzero()[:, 1].unflatten(0, (len(part), count)).T  # (count, B_part), ascending
        gate = None
        if output.gate is not None:
            gate = output.gate[member, part]
            gate = gate / gate.sum(0)
        answer = answer_of(method.task, method, EnsembleOutput(output.logits[member, part], gate), done)
        members = answer.members.new_full((M, *answer.members.shape[1:]), torch.nan)
        members[member, torch.arange(len(part), device=part.device)] = answer.members
        own = member.gather(0, answer.member[None])[0]
        answers.append(replace(answer, member=own, members=members, queried=queried[:, part]))
        positions.append(part)
    order = torch.cat(positions).argsort()
    return Answer.cat(answers).subset(order)

"""Conformance checks for your own costs, assignments, objectives and exchanges.

The built-in components pass these checks. A check that fails raises an AssertionError that describes the first problem.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import cast

import torch
from torch import Tensor, nn

from torchmcl.assignment import Assignment
from torchmcl.ensemble.exchange import check_module
from torchmcl.methods import Composition, Method
from torchmcl.objectives.dataset_pass import run_dataset_passes
from torchmcl.structures.outcome import Outcome
from torchmcl.structures.output import EnsembleOutput
from torchmcl.structures.split import Split
from torchmcl.structures.state import State
from torchmcl.structures.task import Cost, Task
from torchmcl.tasks import Classification

EARLY, LATE = State(epoch=1, epochs=1000), State(epoch=1000, epochs=1000)


def check_cost(cost: Cost, *, auxiliary: bool = False) -> None:
    """Check a cost.

    The cost must have the shape (M, B), must not depend on other members, and must be computed in float32 or wider. The
    cost and its gradient must be finite for extreme logits. The check runs with and without pixel dimensions.

    Args:
        cost: The cost, (logits (M, B, C, …), target (B, …), state) -> (M, B).
        auxiliary: Whether the last output is an auxiliary class.

    >>> from torchmcl.objectives import costs
    >>> check_cost(costs.to_uniform)
    """
    for pixels in ((), (3, 4)):
        logits, target = _batch(3, 6, 4 + auxiliary, pixels, auxiliary=auxiliary)
        value = _seeded(cost, logits, target)
        where = f"(pixels {pixels})"
        _require(value.shape == (3, 6), f"a cost must have the shape (M, B) = (3, 6), got {tuple(value.shape)} {where}")
        _require(value.dtype == torch.float32, f"the cost of float32 logits must be float32, got {value.dtype} {where}")
        first = _seeded(cost, logits[:1], target)[0]
        _require(torch.allclose(first, value[0], atol=1e-6), f"a cost must not depend on other members {where}")
        _check_precision(partial(_seeded, cost, target=target), logits, where)
        _check_gradient(partial(_seeded, cost, target=target), 1e4 * logits.sign(), f"for logits of +-1e4 {where}")


def check_assignment(assign: Callable[[int], Assignment], *, members: int = 4) -> None:
    """Check an assignment.

    The weights must have the shape (M, B), lie in [0, 1], sum to at least k for each example, and carry no gradient.
    In a batch of one example, they must not increase with the regret. Permuting the members must permute the weights.
    For k = M, all weights must be 1.

    Args:
        assign: A function that returns the assignment for a given k.
        members: The number of members M.

    >>> from torchmcl import assignment
    >>> check_assignment(assignment.TopK)
    """
    regret = torch.randn(members, 16, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([*range(1, members), 0])
    for k in range(1, members + 1):
        for state in (State(1, 10), State(10, 10), LATE):
            weights = assign(k)(regret.clone().requires_grad_(), state)
            _require(weights.shape == regret.shape, f"weights must have the shape (M, B), got {tuple(weights.shape)}")
            _require(not weights.requires_grad, "weights must carry no gradient")
            _require(bool(((weights >= 0) & (weights <= 1)).all()), "weights must lie in [0, 1]")
            _require(bool((weights.sum(0) > k - 1e-4).all()), f"weights must sum to at least k={k} for each example")
            single = torch.cat([assign(k)(column, state) for column in regret.split(1, dim=1)], 1)
            falls = torch.gather(single, 0, regret.argsort(0)).diff(dim=0)
            _require(bool((falls < 1e-6).all()), "a member with less regret must not have less weight")
            permuted = assign(k)(regret[order], state)
            _require(torch.allclose(permuted, weights[order], atol=1e-6), "permuting members must permute the weights")
            if k == members:
                _require(bool((weights == 1).all()), "for k = M every weight must be 1")
            _require(bool(assign(k)(regret * 1e6, state).isfinite().all()), "weights must be finite for large regrets")


def check_objective(build: Callable[[int, int, int], Method | Composition | nn.Module]) -> None:
    """Check an objective in its first and last phase, with and without pixel dimensions.

    Each new objective must have its own memory. Weights and costs must have the shape (M, B). Weights must lie in
    [0, 1] and carry no gradient. The gradient must be finite for extreme logits, and the loss for 16-bit logits
    must be computed in float32. Permuting members must not change the loss. For k = M, the costs must equal those of
    the independent ensemble. An example with sample weight n must count as n examples.

    Args:
        build: A function (members, classes, k) -> Method, Composition or module.

    >>> from torchmcl import methods
    >>> check_objective(lambda members, classes, k: methods.build("amcl", members, classes, k=k))
    """
    for pixels, k, late in product(((), (2, 3)), (1, 2, 4), (False, True)):
        _check_objective(partial(_as_method, build, k), k, pixels, late=late)


def check_exchange(build: Callable[..., nn.Module]) -> None:
    """Check an exchange on vectors and on feature maps.

    The exchange must return one tensor per member, with the shape of the input, and have finite gradients. In
    evaluation mode, its result for an example must be deterministic and independent of other examples in the batch. Its
    weights must have the same names and shapes whenever it is built, so that saved weights can be loaded.

    Args:
        build: A function (split, members) -> module, as for `ensemble.exchange.register`.

    >>> from torchmcl.ensemble import exchange
    >>> check_exchange(exchange.feature_sharing)
    """
    for members, maps, training in product((2, 3), ((), (5, 4)), (True, False)):
        split = Split(nn.Conv2d(3, 8, 3), nn.Flatten()) if maps else Split(nn.Linear(3, 8), nn.Identity())
        module, again = (check_module(build(split, members)).train(training) for _ in range(2))
        where = f"({members} members, features {(8, *maps)}, {'training' if training else 'evaluation'})"
        for batch in (4,) if training else (4, 1):  # batch statistics in training need several examples
            _check_exchanged(module, members, (batch, 8, *maps), where, training=training)
        shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (module, again)]
        _require(shapes[0] == shapes[1], f"weights must have the same names and shapes in each build {where}")


def _check_exchanged(module: nn.Module, members: int, shape: tuple[int, ...], where: str, *, training: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    count = 1 if module.shared_stem else members
    features = [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(count)]
    found = module(list(features))
    _require(isinstance(found, list) and len(found) == members, f"expected a list of {members} tensors {where}")
    for h in found:
        _require(h.shape == shape, f"features must keep their shape {shape}, got {tuple(h.shape)} {where}")
    gradients = torch.autograd.grad(sum(h.square().sum() for h in found), features, allow_unused=True)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)
    _require(finite, f"the gradient must be finite {where}")
    if not training:
        same = all(torch.equal(one, two) for one, two in zip(found, module(list(features)), strict=True))
        _require(same, f"an exchange must return the same result twice in evaluation mode {where}")
        single = module([h[:1] for h in features])
        near = all(torch.allclose(one, two[:1], atol=1e-5) for one, two in zip(single, found, strict=True))
        _require(near, f"an example's features must not depend on the rest of the batch {where}")


def _check_objective(build: Callable[[], Method], k: int, pixels: tuple[int, ...], *, late: bool) -> None:
    method = build()
    one, two = method.new_objective(), method.new_objective()
    first, second = ({id(part) for part in (*each.modules(), *each.buffers())} for each in (one, two))
    _require(not first & second, "new objectives must not share any state")
    # With three copies of each example, the same members always take a class, and no counts are tied.
    logits = _batch(4, 3, method.outputs, pixels)[0].repeat_interleave(3, dim=1)
    target = torch.arange(3).repeat_interleave(3).reshape(9, *[1] * len(pixels)).expand(9, *pixels)
    generator = torch.Generator().manual_seed(1)
    gate = torch.rand(4, 3, generator=generator).softmax(0).repeat_interleave(3, dim=1)
    where = f"(k={k}, pixels {pixels}, {'last' if late else 'first'} phase)"
    output = EnsembleOutput(logits, gate if method.composition.gate is not None else None)
    case = _Case(method, target, LATE if late else EARLY, output, where)
    trained = _trained(one, case.output, target, late=late)
    outcome = _check_outcome(case, trained)
    _check_precision(lambda x: case.outcome(trained, x).loss, logits, where)
    # Random losses are equal only on average, so they are not compared.
    random = not torch.equal(case.outcome(trained, seed=1).loss, outcome.loss)
    _check_permutation(case, outcome, random=random)
    _check_sample_weight(case, trained, random=random)
    if k == 4:
        assigned = (outcome.weights * outcome.take + (1 - outcome.weights) * outcome.leave).sum(0).mean()
        same = torch.allclose(assigned, outcome.take.sum(0).mean())
        _require(same, f"for k = M the costs must equal those of the independent ensemble {where}")


@dataclass(frozen=True, eq=False)
class _Case:
    """A batch for a method in one phase of training; `where` describes the case in messages."""

    method: Method
    target: Tensor
    at: State
    output: EnsembleOutput
    where: str

    def outcome(self, objective: nn.Module, logits: Tensor | None = None, seed: int = 0) -> Outcome:
        """Compute the outcome with a copy of the objective, so that a memory counts no example twice."""
        output = self.output if logits is None else EnsembleOutput(logits, self.output.gate)
        return _outcome(copy.deepcopy(objective), output, self.target, self.at, seed)


def _check_outcome(case: _Case, trained: nn.Module) -> Outcome:
    outcome, logits = case.outcome(trained, case.output.logits.clone().requires_grad_()), case.output.logits
    _require(outcome.loss.shape == (), f"the loss must be a scalar, got {tuple(outcome.loss.shape)} {case.where}")
    for name in ("weights", "take", "leave"):
        part: Tensor = getattr(outcome, name)
        _require(part.shape == (4, 9), f"{name} must have the shape (4, 9), got {tuple(part.shape)} {case.where}")
        _require(part.dtype == torch.float32, f"float32 logits must give float32 {name}, got {part.dtype} {case.where}")
    _require(not outcome.weights.requires_grad, f"weights must carry no gradient {case.where}")
    _require(bool(((outcome.weights >= 0) & (outcome.weights <= 1)).all()), f"weights must lie in [0, 1] {case.where}")
    for scaled, where in ((logits.clone(), case.where), (1e4 * logits.sign(), f"for logits of +-1e4 {case.where}")):
        _check_gradient(lambda x: case.outcome(trained, x).loss, scaled, where)
    return outcome


def _check_precision(compute: Callable[[Tensor], Tensor], logits: Tensor, where: str) -> None:
    for narrow in (torch.float16, torch.bfloat16):
        rounded = logits.to(narrow)
        same = torch.equal(compute(rounded), compute(rounded.float()))
        _require(same, f"the value for {narrow} logits must be computed in float32 {where}")
    _require(compute(logits.double()).dtype == torch.float64, f"float64 logits must give float64 values {where}")


def _check_gradient(compute: Callable[[Tensor], Tensor], logits: Tensor, where: str) -> None:
    value = compute(logits.requires_grad_())
    _require(bool(value.isfinite().all()), f"the value must be finite {where}")
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        _require(bool(gradient.isfinite().all()), f"the gradient must be finite {where}")


def _check_permutation(case: _Case, outcome: Outcome, *, random: bool) -> None:
    order, (logits, gate) = torch.tensor([2, 0, 3, 1]), case.output
    other = replace(case, output=EnsembleOutput(logits[order], None if gate is None else gate[order]))
    late = case.at is LATE
    retrained = _trained(case.method.new_objective(), other.output, case.target, late=late)
    permuted = other.outcome(retrained)
    same = random or torch.allclose(permuted.loss, outcome.loss, rtol=1e-5)
    _require(same, f"permuting members must not change the loss {case.where}")
    # An assignment with limits can treat copies of an example differently; which of them is arbitrary.
    weights, expected = (one.unflatten(1, (3, 3)).sum(2) for one in (permuted.weights, outcome.weights[order]))
    _require(torch.allclose(weights, expected, atol=1e-6), f"permuting members must permute the weights {case.where}")


def _check_sample_weight(case: _Case, trained: nn.Module, *, random: bool) -> None:
    weight, (logits, gate) = torch.arange(9) // 3, case.output
    counted = _outcome(copy.deepcopy(trained), case.output, case.target, case.at, sample_weight=weight.float())
    index = torch.arange(9).repeat_interleave(weight)
    copies = EnsembleOutput(logits[:, index], None if gate is None else gate[:, index])
    repeated = _outcome(copy.deepcopy(trained), copies, case.target[index], case.at, index=index)
    same = random or torch.allclose(counted.loss, repeated.loss, rtol=1e-5)
    _require(same, f"an example with sample weight n must count as n examples {case.where}")


def _trained(objective: nn.Module, output: EnsembleOutput, target: Tensor, *, late: bool) -> nn.Module:
    """Bring an objective to its first or last phase, as a training loop does."""
    index = torch.arange(len(target))
    for state in (EARLY, LATE) if late else (EARLY,):
        run_dataset_passes(objective, lambda x: output, [(output.logits, target, index)], state)
        if late and state is not LATE:
            _outcome(objective, output, target, state)
    return objective


def _outcome(
    objective: nn.Module,
    output: EnsembleOutput,
    target: Tensor,
    state: State,
    seed: int = 0,
    *,
    index: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Outcome:
    group = target.flatten(1)[:, 0] if target.ndim > 1 else target
    index = torch.arange(len(target)) if index is None else index
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return objective(output, target, State(state.epoch, state.epochs, group, index, sample_weight))


def _as_method(build: Callable[[int, int, int], Method | Composition | nn.Module], k: int) -> Method:
    if isinstance(built := build(4, 3, k), Method):
        return built

    def compose(members: int, task: Task) -> Composition:
        composed = build(members, task.outputs, k)
        return composed if isinstance(composed, Composition) else Composition(cast(nn.Module, composed), k)

    return Method(compose, 4, Classification(3))


def _batch(M: int, B: int, C: int, pixels: tuple[int, ...], *, auxiliary: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(M, B, C, *pixels, generator=generator)
    return logits, torch.randint(C - auxiliary, (B, *pixels), generator=generator)


def _seeded(cost: Cost, logits: Tensor, target: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cost(logits, target, EARLY)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"Check failed: {what}.")

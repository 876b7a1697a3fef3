"""Conformance checks for costs, assignments, objectives and exchanges: the family's own pass them, and yours can too.

Each raises an AssertionError that says what is wrong, and returns nothing.
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
    """Check that a cost is (M, B), of each member alone, in float32 or wider, finite with its gradient at any logits.

    >>> from torchmcl.objectives import costs
    >>> check_cost(costs.to_uniform)
    """
    for pixels in ((), (3, 4)):
        logits, target = _batch(3, 6, 4 + auxiliary, pixels, auxiliary=auxiliary)
        value = _seeded(cost, logits, target)
        _require(value.shape == (3, 6), f"a cost is (M, B) = (3, 6), got {tuple(value.shape)} for pixels {pixels}")
        _require(value.dtype == torch.float32, f"float32 logits give a float32 cost, got {value.dtype}")
        alone = _seeded(cost, logits[:1], target)
        _require(torch.allclose(alone[0], value[0], atol=1e-6), "a member's cost does not depend on other members")
        _require(_seeded(cost, logits.double(), target).dtype == torch.float64, "float64 logits give a float64 cost")
        for narrow in (torch.float16, torch.bfloat16):
            rounded = logits.to(narrow)
            same = torch.equal(_seeded(cost, rounded, target), _seeded(cost, rounded.float(), target))
            _require(same, f"{narrow} logits are computed in float32")
        extreme = (1e4 * logits.sign()).requires_grad_()
        at_extreme = _seeded(cost, extreme, target)
        _require(bool(at_extreme.isfinite().all()), "logits of +-1e4 give a finite cost")
        if at_extreme.requires_grad:
            (gradient,) = torch.autograd.grad(at_extreme.sum(), extreme)
            _require(bool(gradient.isfinite().all()), "logits of +-1e4 give a finite gradient")


def check_assignment(assign: Callable[[int], Assignment], *, members: int = 4) -> None:
    """Check an assignment, given as `k -> assignment`: (M, B), in [0, 1], sum at least k, no gradient, all 1 at k = M.

    >>> from torchmcl import assignment
    >>> check_assignment(assignment.TopK)
    """
    regret = torch.randn(members, 16, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([*range(1, members), 0])
    for k in range(1, members + 1):
        for state in (State(1, 10), State(10, 10), LATE):
            weights = assign(k)(regret.clone().requires_grad_(), state)
            _require(weights.shape == regret.shape, f"weights are (M, B) as regret, got {tuple(weights.shape)}")
            _require(not weights.requires_grad, "the choice carries no gradient")
            _require(bool(((weights >= 0) & (weights <= 1)).all()), "weights lie in [0, 1]")
            _require(bool((weights.sum(0) > k - 1e-4).all()), f"at least k={k} members' worth take each example")
            falls = torch.gather(weights, 0, regret.argsort(0)).diff(dim=0)
            _require(bool((falls < 1e-6).all()), "less regret never means less weight")
            permuted = assign(k)(regret[order], state)
            _require(torch.allclose(permuted, weights[order], atol=1e-6), "permuting members permutes the weights")
            if k == members:
                _require(bool((weights == 1).all()), "at k = M everyone takes everything")
            _require(bool(assign(k)(regret * 1e6, state).isfinite().all()), "weights are finite at extreme regret")


def check_objective(build: Callable[[int, int, int], Method | Composition | nn.Module]) -> None:
    """Check an objective, given as `members, classes, k -> Method, Composition or module`, in its first and last phase.

    Each objective is new, with a memory of its own. Shapes, range, no gradient through the choice, a finite gradient at
    extreme logits, 16 bit input computed in float32, permuting members changes nothing, k = M equals the independent
    ensemble, an example that is weighted by a whole number counts as so many; with and without pixels.

    >>> from torchmcl import methods
    >>> check_objective(lambda members, classes, k: methods.build("amcl", members, classes, k=k))
    """
    for pixels, k, late in product(((), (2, 3)), (1, 2, 4), (False, True)):
        _check_objective(partial(_as_method, build, k), k, pixels, late=late)


def check_exchange(build: Callable[..., nn.Module]) -> None:
    """Check an exchange, given as the function that `ensemble.exchange.register` takes, on vectors and on maps.

    One tensor per member of the same shape, for any number of members and examples; finite gradients; in evaluation the
    same answer twice, and to an example alone as within a batch; the same weights each time it is built, so that what
    is saved can be loaded.

    >>> from torchmcl.ensemble import exchange
    >>> check_exchange(exchange.feature_sharing)
    """
    for members, maps, training in product((2, 3), ((), (5, 4)), (True, False)):
        split = Split(nn.Conv2d(3, 8, 3), nn.Flatten()) if maps else Split(nn.Linear(3, 8), nn.Identity())
        module, again = (check_module(build(split, members)).train(training) for _ in range(2))
        where = f"({members} members, features {(8, *maps)}, {'training' if training else 'evaluation'})"
        for batch in (4,) if training else (4, 1):  # one example has no batch statistics to train with
            _check_exchanged(module, members, (batch, 8, *maps), where, training=training)
        shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (module, again)]
        _require(shapes[0] == shapes[1], f"an exchange has the same weights each time it is built {where}")


def _check_exchanged(module: nn.Module, members: int, shape: tuple[int, ...], where: str, *, training: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    count = 1 if module.shared_stem else members
    given = [torch.randn(shape, generator=generator, requires_grad=True) for _ in range(count)]
    found = module(list(given))
    _require(isinstance(found, list) and len(found) == members, f"an exchange returns a list of {members} {where}")
    for h in found:
        _require(h.shape == shape, f"features keep their shape {shape}, got {tuple(h.shape)} {where}")
    gradients = torch.autograd.grad(sum(h.square().sum() for h in found), given, allow_unused=True)
    finite = all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None)
    _require(finite, f"the gradient is finite {where}")
    if not training:
        same = all(torch.equal(one, two) for one, two in zip(found, module(list(given)), strict=True))
        _require(same, f"an exchange gives the same answer twice {where}")
        alone = module([h[:1] for h in given])
        near = all(torch.allclose(one, two[:1], atol=1e-5) for one, two in zip(alone, found, strict=True))
        _require(near, f"an example's features do not depend on the rest of the batch {where}")


def _check_objective(build: Callable[[], Method], k: int, pixels: tuple[int, ...], *, late: bool) -> None:
    method = build()
    one, two = method.new_objective(), method.new_objective()
    own = {id(part) for part in (*one.modules(), *one.buffers())} & {
        id(part) for part in (*two.modules(), *two.buffers())
    }
    _require(not own, "each training has an objective of its own, which shares nothing with another")
    # Few examples, three times over: a class is then always taken by the same members, and no count ties with another.
    logits = _batch(4, 3, method.outputs, pixels)[0].repeat_interleave(3, dim=1)
    target = torch.arange(3).repeat_interleave(3).reshape(9, *[1] * len(pixels)).expand(9, *pixels)
    generator = torch.Generator().manual_seed(1)
    gate = torch.rand(4, 9, generator=generator).softmax(0) if method.gate is not None else None
    case = _Case(method, target, LATE if late else EARLY, EnsembleOutput(logits, gate), "")
    case = replace(case, where=f"(k={k}, pixels {pixels}, {'last' if late else 'first'} phase)")
    trained = _trained(one, case.output, target, late=late)
    whole = _check_outcome(case, trained)
    _check_precision(case, trained)
    chance = not torch.equal(case.outcome(trained, seed=1).loss, whole.loss)  # a random loss is equal on average only
    _check_permutation(case, whole, chance=chance)
    _check_sample_weight(case, trained, chance=chance)
    if k == 4:
        assigned = (whole.weights * whole.take + (1 - whole.weights) * whole.leave).sum(0).mean()
        same = torch.allclose(assigned, whole.take.sum(0).mean())
        _require(same, f"k = M equals the independent ensemble {case.where}")


@dataclass(frozen=True, eq=False)
class _Case:
    """A batch for a method at one moment of training; `where` describes it in messages."""

    method: Method
    target: Tensor
    at: State
    output: EnsembleOutput
    where: str

    def outcome(self, objective: nn.Module, logits: Tensor | None = None, seed: int = 0) -> Outcome:
        """The outcome of a copy of the objective, so that nothing is counted twice."""
        output = self.output if logits is None else EnsembleOutput(logits, self.output.gate)
        return _judge(copy.deepcopy(objective), output, self.target, self.at, seed)


def _check_outcome(case: _Case, trained: nn.Module) -> Outcome:
    """Shapes, range and gradients."""
    whole = case.outcome(trained, leaf := case.output.logits.clone().requires_grad_())
    _require(whole.loss.shape == () and bool(whole.loss.isfinite()), f"the loss is a finite scalar {case.where}")
    for name in ("weights", "take", "leave"):
        part: Tensor = getattr(whole, name)
        _require(part.shape == (4, 9), f"{name} is (M, B) = (4, 9), got {tuple(part.shape)} {case.where}")
        _require(part.dtype == torch.float32, f"{name} of float32 logits is float32, got {part.dtype} {case.where}")
    _require(not whole.weights.requires_grad, f"the choice carries no gradient {case.where}")
    _require(bool(((whole.weights >= 0) & (whole.weights <= 1)).all()), f"weights lie in [0, 1] {case.where}")
    (gradient,) = torch.autograd.grad(whole.loss, leaf)
    _require(bool(gradient.isfinite().all()), f"the gradient is finite {case.where}")
    extreme = (1e4 * case.output.logits.sign()).requires_grad_()
    (gradient,) = torch.autograd.grad(case.outcome(trained, extreme).loss, extreme)
    _require(bool(gradient.isfinite().all()), f"logits of +-1e4 give a finite gradient {case.where}")
    return whole


def _check_precision(case: _Case, trained: nn.Module) -> None:
    """16 bit input is computed in float32, float64 stays as it is."""
    logits = case.output.logits
    for narrow in (torch.float16, torch.bfloat16):
        rounded = logits.to(narrow)
        same = torch.equal(case.outcome(trained, rounded).loss, case.outcome(trained, rounded.float()).loss)
        _require(same, f"{narrow} logits are computed in float32 {case.where}")
    double = case.outcome(trained, logits.double()).loss.dtype
    _require(double == torch.float64, f"float64 stays float64 {case.where}")


def _check_permutation(case: _Case, whole: Outcome, *, chance: bool) -> None:
    """Permuting members changes nothing."""
    order, (logits, gate) = torch.tensor([2, 0, 3, 1]), case.output
    other = replace(case, output=EnsembleOutput(logits[order], None if gate is None else gate[order]))
    late = case.at is LATE
    retrained = _trained(case.method.new_objective(), other.output, case.target, late=late)
    permuted = other.outcome(retrained)
    same = chance or torch.allclose(permuted.loss, whole.loss, rtol=1e-5)
    _require(same, f"permuting members changes nothing {case.where}")
    _require(torch.allclose(permuted.weights, whole.weights[order], atol=1e-6), f"weights follow members {case.where}")


def _check_sample_weight(case: _Case, trained: nn.Module, *, chance: bool) -> None:
    """An example that is weighted by a whole number counts as so many."""
    often, (logits, gate) = torch.arange(9) // 3, case.output
    counted = _judge(copy.deepcopy(trained), case.output, case.target, case.at, sample_weight=often.float())
    index = torch.arange(9).repeat_interleave(often)
    many = EnsembleOutput(logits[:, index], None if gate is None else gate[:, index])
    repeated = _judge(copy.deepcopy(trained), many, case.target[index], case.at, index=index)
    same = chance or torch.allclose(counted.loss, repeated.loss, rtol=1e-5)
    _require(same, f"an example of sample weight n counts as n examples {case.where}")


def _trained(objective: nn.Module, output: EnsembleOutput, target: Tensor, *, late: bool) -> nn.Module:
    """The objective as a loop would bring it to its first or its last phase."""
    index = torch.arange(len(target))
    for state in (EARLY, LATE) if late else (EARLY,):
        run_dataset_passes(objective, lambda x: output, [(output.logits, target, index)], state)
        if late and state is not LATE:
            _judge(objective, output, target, state)
    return objective


def _judge(
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


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"Expected that {what}.")

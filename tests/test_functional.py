"""winner_takes_all against slow loops, what every mode has in common, the objectives it equals, and bad input."""

from itertools import combinations, product
from math import ceil, floor, inf

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchmcl import Regression, State, UsageError, methods
from torchmcl.assignment import Balanced, TopK
from torchmcl.functional import MODES, score_loss, winner_takes_all

METHODS = {"hard": "smcl", "top_k": "smcl", "relaxed": "relaxed", "evolving": "evolving", "annealed": "annealed"}
METHODS["balanced"] = "smcl"
BY_EXAMPLE = [mode for mode in MODES if mode != "balanced"]  # modes that assign each example by itself
seeds = st.integers(0, 2**31)


def draw(seed, M, B, *T):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(M, B, *T, generator=generator, dtype=torch.float64).requires_grad_()


def options(mode, epoch=3, epochs=6):
    return {"epoch": epoch, "epochs": epochs} if mode in ("evolving", "annealed") else {}


def slow_weights(losses, mode, k, eps, T, epoch, epochs):
    """The weights of one example or target, a list of M floats, from each paper's rule."""
    M = len(losses)
    order = sorted(range(M), key=lambda m: (losses[m], m))
    if mode in ("hard", "top_k", "evolving"):
        n = k
        if mode == "evolving":  # M, M/2, … k in stages of equal length
            stages = [M]
            while stages[-1] > k:
                stages.append(max(stages[-1] // 2, k))
            n = stages[(epoch - 1) * len(stages) // epochs]
        return [float(m in order[:n]) for m in range(M)]
    if mode == "relaxed":
        return [1 - eps if m in order[:k] or k == M else k * eps / (M - k) for m in range(M)] if k < M else [1.0] * M
    total = sum(torch.exp(torch.tensor(-one / T, dtype=torch.float64)).item() for one in losses)
    return [torch.exp(torch.tensor(-one / T, dtype=torch.float64)).item() / total for one in losses]


@pytest.mark.parametrize("mode", BY_EXAMPLE)
@given(seeds, st.integers(1, 5), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_equals_a_slow_loop(mode, seed, M, B, k, epoch):
    k = 1 if mode in ("hard", "annealed") else min(k, M)
    losses = draw(seed, M, B)
    fixed = {"temperature": 0.3} if mode == "annealed" else {"epoch": epoch, "epochs": 6}
    loss, weights = winner_takes_all(losses, mode, k=k, eps=0.2, **fixed)
    slow = 0
    for b in range(B):
        expected = slow_weights(losses[:, b].tolist(), mode, k, 0.2, 0.3, epoch, 6)
        torch.testing.assert_close(weights[:, b].tolist(), expected)
        slow = slow + sum(w * losses[m, b] for m, w in enumerate(expected)) / B
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(torch.autograd.grad(loss, losses), torch.autograd.grad(slow, losses))
    assert not weights.requires_grad


@pytest.mark.parametrize("mode", BY_EXAMPLE)
@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_several_targets_equal_a_loop_over_examples(mode, seed, M, B, T):
    """Each target is assigned by itself; an example counts as the mean over its valid targets, or not at all."""
    losses = draw(seed, M, B, T)
    mask = torch.rand(B, T, generator=torch.Generator().manual_seed(seed)) < 0.6
    garbage = losses.masked_fill(~mask, 1e9)
    loss, weights = winner_takes_all(garbage, mode, mask=mask, **options(mode))
    assert weights.shape == losses.shape
    assert not weights[:, ~mask].any()
    counted, total = 0, torch.zeros((), dtype=torch.float64)
    for b in range(B):
        if mask[b].any():
            total = total + winner_takes_all(losses[:, b, mask[b]], mode, **options(mode))[0]
            counted += 1
    torch.testing.assert_close(loss, total / max(counted, 1))


def slow_balance(losses, k, slack):
    """The weights (M, N) with the least total loss within the limits, by trying all choices of k of M for N targets."""
    M, N = losses.shape
    low, high = floor(max(1 - slack, 0) * N * k / M + 1e-9), ceil(min((1 + slack) * N * k / M, 1e9) - 1e-9)
    best, chosen, values = inf, None, losses.tolist()
    for subsets in product(list(combinations(range(M), k)), repeat=N):
        load = [sum(m in subset for subset in subsets) for m in range(M)]
        total = sum(values[m][n] for n, subset in enumerate(subsets) for m in subset)
        if low <= min(load) and max(load) <= high and total < best:
            best, chosen = total, subsets
    return torch.tensor([[float(m in subset) for subset in chosen] for m in range(M)], dtype=losses.dtype)


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.4, 1.0, inf]))
def test_balanced_equals_the_best_of_all_choices_within_the_limits(seed, M, B, k, slack):
    losses, k = draw(seed, M, B), min(k, M)
    loss, weights = winner_takes_all(losses, "balanced", k=k, slack=slack)
    expected = slow_balance(losses, k, slack)
    assert torch.equal(weights, expected)
    slow = (expected * losses).sum() / B
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(torch.autograd.grad(loss, losses), torch.autograd.grad(slow, losses))
    assert not weights.requires_grad
    if slack == inf:
        assert torch.equal(weights, winner_takes_all(losses, "top_k", k=k)[1])


@given(seeds, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
def test_balanced_counts_valid_targets(seed, M, B, k):
    """Each valid target is assigned, and members take equal shares of all valid targets of the batch."""
    losses, k = draw(seed, M, B, 2), min(k, M)
    mask = torch.rand(B, 2, generator=torch.Generator().manual_seed(seed)) < 0.7
    if not mask.any():
        return
    loss, weights = winner_takes_all(losses.masked_fill(~mask, 1e9), "balanced", k=k, mask=mask)
    assert not weights[:, ~mask].any()
    assert torch.equal(weights[:, mask], slow_balance(losses[:, mask], k, 0.0))
    by_example = [(weights * losses)[:, b, mask[b]].sum(0).mean() for b in range(B) if mask[b].any()]
    torch.testing.assert_close(loss, torch.stack(by_example).mean())


def test_a_rule_remembers_what_members_took():
    """Two examples per batch and four members: batches by themselves never reach the last two."""
    losses = torch.tensor([[0.0], [1.0], [2.0], [3.0]]).repeat(1, 2)
    rule, by_itself = Balanced(1), torch.zeros(4)
    for _ in range(10):
        by_itself += winner_takes_all(losses, "balanced")[1].sum(1)
        winner_takes_all(losses, rule)
        with torch.no_grad():  # validation is not counted
            winner_takes_all(losses, rule)
    assert by_itself.tolist() == [10, 10, 0, 0]
    assert rule.counts.tolist() == [5, 5, 5, 5]
    winner_takes_all(losses, rule.eval())
    assert rule.counts.sum() == 20


@given(seeds, st.integers(1, 4), st.booleans())
def test_a_rule_with_several_targets_counts_what_the_objective_counts(seed, M, several):
    """Running counts over batches, targets and padding are those of the method with a balanced assignment."""
    generator = torch.Generator().manual_seed(seed)
    rule, objective = Balanced(1), methods.build("smcl", M, task=Regression(2), balance="assignment").new_objective()
    for _ in range(3):
        outputs = torch.randn(M, 4, 2, generator=generator, dtype=torch.float64).requires_grad_()
        target = torch.randn(4, *[3] * several, 2, generator=generator, dtype=torch.float64)
        mask = None
        if several:
            mask = (torch.rand(4, 3, generator=generator) < 0.5) | (torch.arange(3) == 1)
            target[~mask] = torch.nan
        found = outputs.unsqueeze(2) if several else outputs
        losses = (found - target.nan_to_num(0)).square().mean(-1)
        loss, _ = winner_takes_all(losses, rule, mask=mask)
        torch.testing.assert_close(objective(outputs, target, State(1, 2)).loss, loss)
    (counts,) = [value for name, value in objective.state_dict().items() if name.endswith("counts")]
    torch.testing.assert_close(counts, rule.counts)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("T", [(), (3,)])
def test_any_rule_is_a_mode(T):
    losses = draw(0, 4, 6, *T)
    torch.testing.assert_close(winner_takes_all(losses, TopK(2)), winner_takes_all(losses, "top_k", k=2))


@pytest.mark.parametrize("mode", MODES)
@given(seeds, st.integers(2, 5), st.integers(1, 4))
def test_permuting_members_permutes_the_weights_and_nothing_else(mode, seed, M, B):
    losses = draw(seed, M, B)
    order = torch.randperm(M, generator=torch.Generator().manual_seed(seed))
    loss, weights = winner_takes_all(losses, mode, **options(mode))
    other, permuted = winner_takes_all(losses[order], mode, **options(mode))
    torch.testing.assert_close(other, loss)
    torch.testing.assert_close(permuted, weights[order])


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "hard"])
@given(seeds, st.integers(1, 5), st.integers(1, 4))
def test_all_members_as_winners_are_the_independent_ensemble(mode, seed, M, B):
    losses = draw(seed, M, B)
    loss, weights = winner_takes_all(losses, mode, k=M, **options(mode))
    assert (weights == 1).all()
    torch.testing.assert_close(loss, losses.sum(0).mean())


@given(seeds, st.integers(1, 5), st.integers(1, 4), st.sampled_from([(), (3,)]))
def test_a_temperature_of_zero_is_winner_takes_all(seed, M, B, T):
    losses = draw(seed, M, B, *T)
    hard = winner_takes_all(losses)
    for temperature in (0.0, 1e-5):
        torch.testing.assert_close(winner_takes_all(losses, "annealed", temperature=temperature), hard)
    nearly = winner_takes_all(1000 * losses, "annealed", temperature=6e-4)
    torch.testing.assert_close(nearly[0], 1000 * hard[0])


@given(seeds, st.integers(1, 5))
def test_the_annealed_schedule_ends_hard(seed, M):
    losses = draw(seed, M, 4)
    torch.testing.assert_close(winner_takes_all(losses, "annealed", epoch=10, epochs=10), winner_takes_all(losses))


@pytest.mark.parametrize("mode", MODES)
@given(seeds, st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_equals_the_objective_of_the_method(mode, seed, M, B, several):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(M, B, 2, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.randn(B, *[3] * several, 2, generator=generator, dtype=torch.float64)
    mask = None
    if several:
        mask = (torch.rand(B, 3, generator=generator) < 0.5) | (torch.arange(3) == 1)
        target[~mask] = torch.nan
    balance = {"balance": "assignment"} if mode == "balanced" else {}
    method = methods.build(METHODS[mode], M, task=Regression(2), **balance)
    outcome = method.new_objective()(outputs, target, State(3, 6))
    filled = target.nan_to_num(0)
    found = outputs.unsqueeze(2) if several else outputs
    losses = (found - filled).square().mean(-1)
    loss, weights = winner_takes_all(losses, mode, mask=mask, **options(mode))
    torch.testing.assert_close(outcome.loss, loss)
    torch.testing.assert_close(*(torch.autograd.grad(one, outputs, retain_graph=True) for one in (outcome.loss, loss)))
    share = weights if mask is None else weights.sum(2) / mask.sum(1)
    torch.testing.assert_close(outcome.weights, share)


def test_half_precision_is_computed_in_float32():
    losses = draw(0, 3, 5).detach().to(torch.bfloat16)
    loss, weights = winner_takes_all(losses)
    assert loss.dtype == weights.dtype == torch.float32
    torch.testing.assert_close(loss, winner_takes_all(losses.float())[0])


def test_three_lines_in_a_loop_of_ones_own():
    """M heads on one trunk, any loss: two modes are found."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for epoch in range(1, 201):
        x, y = torch.rand(64, 1), torch.randint(2, (64,)) * 2.0 - 1
        losses = (network(x).T - y).square()
        loss, _ = winner_takes_all(losses, "annealed", epoch=epoch, epochs=200)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    low, high = network(torch.rand(1, 1))[0].sort().values.tolist()
    assert low < -0.8
    assert high > 0.8


LOSSES = torch.rand(3, 4)


@pytest.mark.parametrize(
    ("losses", "given", "message"),
    [
        (LOSSES, {"mode": "softest"}, "Unknown mode 'softest'"),
        (LOSSES, {"mode": 2}, "Unknown mode 2. Available: hard"),
        (LOSSES, {"mode": None, "k": 2}, "Unknown mode None"),
        (LOSSES, {"k": 2}, "one winner, got k=2. Use mode='top_k'"),
        (LOSSES, {"mode": "top_k", "k": 4}, "Expected 1 <= k <= 3 members, got k=4"),
        (LOSSES, {"mode": "evolving", "k": 0, "epoch": 1, "epochs": 2}, "Expected 1 <= k <= 3 members, got k=0"),
        (LOSSES, {"mode": "evolving", "k": 4, "epoch": 1, "epochs": 2}, "Expected 1 <= k <= 3 members, got k=4"),
        (LOSSES, {"mode": "balanced", "k": 4}, "Expected 1 <= k <= 3 members, got k=4"),
        (LOSSES, {"mode": "top_k", "k": 1.5}, "Expected 1 <= k <= 3 members, got k=1.5"),
        (LOSSES, {"mode": "balanced", "slack": -1.0}, "Expected slack >= 0, got -1.0"),
        (LOSSES, {"mode": Balanced(1), "slack": 0.5}, "An assignment rule has its own options"),
        (LOSSES, {"mode": Balanced(1), "k": 2}, "An assignment rule has its own options"),
        (LOSSES, {"mode": "relaxed", "eps": 1.5}, "Expected 0 <= eps <= 1, got 1.5"),
        (LOSSES, {"mode": "annealed", "temperature": -1.0}, "Expected temperature >= 0, got -1.0"),
        (LOSSES, {"mode": "annealed"}, "The mode 'annealed' changes over training. Pass epoch"),
        (LOSSES, {"mode": "evolving", "epoch": 1}, "The mode 'evolving' changes over training. Pass epoch"),
        (LOSSES, {"mode": "evolving", "epoch": 0, "epochs": 4}, "epoch >= 1, got 0. Epochs are counted from 1"),
        (LOSSES, {"mode": "annealed", "epoch": 1, "epochs": 0}, "Expected epochs >= 1, got 0"),
        (LOSSES.mean(), {}, "Expected floating point losses .M, B., members first, .* got .. of float32"),
        (LOSSES[0], {}, "use reduction='none'"),
        (LOSSES.int(), {}, "Expected floating point losses"),
        ([[1.0]], {}, "got list"),
        (LOSSES[:, :0], {}, "Expected at least one member and example"),
        (LOSSES / 0, {}, "A loss is NaN or infinite"),
        (LOSSES * torch.nan, {}, "A loss is NaN or infinite"),
        (LOSSES, {"mask": torch.ones(4, 1, dtype=torch.bool)}, r"Expected a boolean mask \(B, T\)"),
        (LOSSES[..., None], {"mask": [[True]] * 4}, r"Expected a boolean mask \(B, T\) .* got list"),
        (LOSSES[..., None], {"mask": torch.ones(4, 1)}, r"Expected a boolean mask \(B, T\)"),
        (LOSSES[..., None], {"mask": torch.ones(3, 1, dtype=torch.bool)}, r"Expected a boolean mask \(B, T\)"),
    ],
)
def test_bad_input_is_one_clear_line(losses, given, message):
    with pytest.raises(UsageError, match=message) as error:
        winner_takes_all(losses, **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("scores", "given", "message"),
    [
        (torch.zeros(3, 4), {"kind": "brier"}, "Unknown kind of score 'brier'"),
        (torch.zeros(4, 3), {}, r"Expected scores \(M, B\) and losses"),
        (np.zeros((3, 4)), {}, r"Expected scores \(M, B\) and losses .* got ndarray and"),
        (torch.zeros(3, 4), {"negatives": 0}, "Expected negatives >= 1 or None, got 0"),
    ],
)
def test_bad_scores_are_one_clear_line(scores, given, message):
    with pytest.raises(UsageError, match=message) as error:
        score_loss(scores, LOSSES, **given)
    assert "\n" not in str(error.value)

"""Losses of regression against the official formulas of rMCL, annealed MCL, TimeMCL and MTP, each as a slow loop.

Predictions are [batch, hypotheses, …] in the official code and (M, B, …) here. Four traps in public code are tests:
TimeMCL's annealed loss, LoRA-MCL's temperature, and rMCL's toy code with its mean over the best n and its options that
have no effect.
"""

from math import exp, log

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from torchmcl import Regression, State, methods
from torchmcl.assignment import Annealed
from torchmcl.functional import winner_takes_all
from torchmcl.tasks.regression import location

seeds = st.integers(0, 2**31)
K, B, D, T = 4, 5, 2, 3


def number(x):
    return float(x.detach()) if torch.is_tensor(x) else x


def euclidean(outputs, target, state):
    """The distance of rMCL, sqrt(|f - y|^2 + 0.001)."""
    return ((location(outputs, target) - target).square().sum(-1) + 0.001).sqrt()


def squared_norm(outputs, target, state):
    """The distance of annealed MCL, |f - y|^2."""
    return (location(outputs, target) - target).square().sum(-1)


def draw(seed, D, *targets):
    """Outputs (K, B, D + 1) with a score, and targets (B, …, D), of which the first one is never padding."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(K, B, D + 1, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.randn(B, *targets, D, generator=generator, dtype=torch.float64)
    if targets:
        target[torch.rand(B, *targets, generator=generator) < 0.4] = torch.nan
        target[:, 0] = 1.0
    return outputs, target


def loss_of(name, task, outputs, target, state=None, **options):
    return methods.build(name, K, task=task, **options).new_objective()(outputs, target, state or State(1, 10)).loss


def agree(loss, slow, outputs):
    torch.testing.assert_close(loss, slow)
    ours, theirs = (torch.autograd.grad(one, outputs, retain_graph=True)[0] for one in (loss, slow))
    torch.testing.assert_close(ours, theirs)


def distance(outputs, b, k, y):
    return torch.sqrt(sum((outputs[k, b, d] - y[d]) ** 2 for d in range(len(y))) + 0.001)


def binary(score, won):
    p = 1 / (1 + torch.exp(-score))
    return -torch.log(p) if won else -torch.log(1 - p)


def active(target, b):
    return [t for t in range(target.shape[1]) if not target[b, t].isnan().any()]


@given(seeds)
def test_rmcl_with_one_target(seed):
    """The winner's distance, and the BCE of the winner and three random losers: with four hypotheses, of all."""
    outputs, target = draw(seed, D)
    slow = 0
    for b in range(B):
        distances = [distance(outputs, b, k, target[b]) for k in range(K)]
        best = min(range(K), key=lambda k: number(distances[k]))
        score = sum(binary(outputs[k, b, D], k == best) for k in range(K)) / K
        slow = slow + (distances[best] + 0.5 * score) / B
    for negatives in (3, None):
        task = Regression(D, loss=euclidean, score="bce", negatives=negatives)
        agree(loss_of("smcl", task, outputs, target), slow, outputs)


@given(seeds)
def test_rmcl_averages_distances_over_all_targets_of_a_batch(seed):
    """An example counts here as one, in rMCL as often as it has targets: the two differ by the sample weights."""
    outputs, target = draw(seed, D, T)
    pairs = [(b, t) for b in range(B) for t in active(target, b)]
    slow = sum(min((distance(outputs, b, k, target[b, t]) for k in range(K)), key=number) for b, t in pairs) / len(
        pairs
    )
    counts = torch.tensor([len(active(target, b)) for b in range(B)], dtype=torch.float64)
    state = State(1, 10, sample_weight=counts)
    agree(loss_of("smcl", Regression(D, loss=euclidean), outputs[:, :, :D], target, state), slow, outputs)


@given(seeds)
def test_rmcl_scores_hypotheses_that_win_any_target(seed):
    outputs, target = draw(seed, D, T)
    without = loss_of("smcl", Regression(D, loss=euclidean), outputs[:, :, :D], target)
    slow = 0
    for b in range(B):
        won = set()
        for t in active(target, b):
            won.add(min(range(K), key=lambda k, b=b, t=t: number(distance(outputs, b, k, target[b, t]))))
        slow = slow + sum(binary(outputs[k, b, D], k in won) for k in range(K)) / (B * K)
    agree(loss_of("smcl", Regression(D, loss=euclidean, score="bce"), outputs, target), without + 0.5 * slow, outputs)


@given(seeds, st.sampled_from([2, 3]))
def test_rmcl_averages_distances_over_the_best_n(seed, n):
    """The mode wta-top-n divides by n; here, the losses of the winners are added."""
    outputs, target = draw(seed, D)
    slow = 0
    for b in range(B):
        distances = sorted((distance(outputs, b, k, target[b]) for k in range(K)), key=number)
        slow = slow + sum(distances[:n]) / n / B
    task = Regression(D, loss=euclidean)
    agree(loss_of("smcl", task, outputs[:, :, :D], target, k=n), n * slow, outputs)


@given(seeds, st.integers(1, 200))
def test_annealed_mcl(seed, epoch):
    """sum_k sg(softmin(d / T))_k d_k with T = 0.5 * 0.95 ** (epoch - 1), and the BCE of "won" for all hypotheses."""
    outputs, target = draw(seed, D)
    temperature = 0.5 * 0.95 ** (epoch - 1)
    assume(temperature > 5e-4)
    slow = 0
    for b in range(B):
        d = [sum((outputs[k, b, i] - target[b, i]) ** 2 for i in range(D)) for k in range(K)]
        lowest = min(number(one) for one in d)
        boltzmann = [exp(-(number(one) - lowest) / temperature) for one in d]
        best = min(range(K), key=lambda k: number(d[k]))
        slow = slow + sum(boltzmann[k] / sum(boltzmann) * d[k] for k in range(K)) / B
        slow = slow + sum(binary(outputs[k, b, D], k == best) for k in range(K)) / (B * K)
    task = Regression(D, loss=squared_norm, score="bce", score_weight=1.0)
    agree(loss_of("annealed", task, outputs, target, State(epoch, 200), decay=0.95), slow, outputs)


@pytest.mark.parametrize("mode", ["wta", "relaxed-wta", "awta"])
@given(seeds)
def test_timemcl(mode, seed):
    """Errors averaged over the steps of a series, and 0.5 times the BCE.

    The annealed loss of the official code is a mean over batch and hypotheses, so it is 1/K of annealed MCL's.
    """
    steps = 6
    outputs, target = draw(seed, steps)
    errors = [[sum((outputs[k, b, t] - target[b, t]) ** 2 for t in range(steps)) / steps for k in range(K)]
              for b in range(B)]  # fmt: skip
    parts = []
    for b in range(B):
        e = errors[b]
        winner = min(e, key=number)
        if mode == "wta":
            parts.append(winner)
        elif mode == "relaxed-wta":
            parts.append((1 - 0.1 * K / (K - 1)) * winner + 0.1 / (K - 1) * sum(e))
        else:
            soft = [exp(-number(one) / 0.5) for one in e]
            parts += [soft[k] / sum(soft) * e[k] for k in range(K)]
    official = sum(parts) / len(parts)
    score = sum(
        binary(outputs[k, b, steps], errors[b][k] is min(errors[b], key=number)) for b in range(B) for k in range(K)
    ) / (B * K)
    name, options = {
        "wta": ("smcl", {}),
        "relaxed-wta": ("relaxed", {"eps": 0.1}),
        "awta": ("annealed", {"start": 0.5, "decay": 0.95}),
    }[mode]
    factor = K if mode == "awta" else 1
    task = Regression(steps, loss="squared", score="bce")
    agree(loss_of(name, task, outputs, target, **options), factor * official + 0.5 * score, outputs)


@given(seeds)
def test_mtp(seed):
    """Smooth L1 of the best mode plus the cross-entropy of this mode.

    The official code selects the mode by the average displacement, among modes in the direction of the target. Here, it
    is selected by the loss, which is the same unless two modes are about as good.
    """
    steps = 3
    outputs, target = draw(seed, 2 * steps)
    slow = 0
    for b in range(B):

        def displacement(k, b=b):
            points = (outputs[k, b, : 2 * steps] - target[b]).detach().reshape(steps, 2)
            return float(points.norm(dim=1).mean())

        best = min(range(K), key=displacement)
        z = [outputs[best, b, i] - target[b, i] for i in range(2 * steps)]
        regression = sum(0.5 * one**2 if abs(number(one)) < 1 else abs(one) - 0.5 for one in z) / len(z)
        scores = outputs[:, b, 2 * steps]
        slow = slow + (regression - scores[best] + torch.log(sum(torch.exp(s) for s in scores))) / B
        each = torch.nn.functional.huber_loss(
            outputs[:, b, : 2 * steps], target[b].expand(K, -1), reduction="none"
        ).mean(1)
        assume(int(each.argmin()) == best)
    task = Regression(2 * steps, loss="huber", score="ce", score_weight=1.0)
    agree(loss_of("smcl", task, outputs, target), slow, outputs)


@given(seeds)
def test_qcnet(seed):
    """The Laplace NLL of the best mode plus the NLL of the mixture with detached locations and scales."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(K, B, 2 * D + 1, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.randn(B, D, generator=generator, dtype=torch.float64)
    slow = 0
    for b in range(B):
        nll = [
            sum(
                abs(outputs[k, b, d] - target[b, d]) * torch.exp(-outputs[k, b, D + d]) + outputs[k, b, D + d] + log(2)
                for d in range(D)
            )
            for k in range(K)
        ]
        weights = torch.stack([outputs[k, b, 2 * D] for k in range(K)])
        mixture = -torch.log(sum(weights.softmax(0)[k] * torch.exp(-nll[k].detach()) for k in range(K)))
        slow = slow + (min(nll, key=number) / D + mixture) / B
    task = Regression(D, loss="laplace", score="mixture", score_weight=1.0)
    agree(loss_of("smcl", task, outputs, target), slow, outputs)


@pytest.mark.parametrize("loss", ["gaussian", "laplace"])
@pytest.mark.parametrize("targets", [(), (T,)])
@given(seeds)
def test_mixture_density_network(loss, targets, seed):
    """The gradient is that of -log sum_k softmax(s)_k p_k(y), divided by D, also for several targets per example."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(K, B, 2 * D + 1, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.randn(B, *targets, D, generator=generator, dtype=torch.float64)
    if targets:
        target[0, 1:] = torch.nan  # padding
    slow, kind = 0, {"gaussian": torch.distributions.Normal, "laplace": torch.distributions.Laplace}[loss]
    for b in range(B):
        rows = [row for row in target[b].reshape(-1, D) if not row.isnan().any()]
        for y in rows:
            p = kind(outputs[:, b, :D], outputs[:, b, D : 2 * D].exp()).log_prob(y).sum(1).exp()
            slow = slow - torch.log((outputs[:, b, 2 * D].softmax(0) * p).sum()) / (B * D * len(rows))
    task = Regression(D, loss=loss, score="mdn")
    found = loss_of("annealed", task, outputs, target, start=1 / D, decay=1.0)
    torch.testing.assert_close(*(torch.autograd.grad(one, outputs, retain_graph=True)[0] for one in (found, slow)))


def test_trap_the_temperature_of_lora_mcl():
    """Its README says T_0 rho^t, which `decay` is; its code is T_fin + (T_0 - T_fin) rho^t and never gets hard."""
    rule, final = Annealed(1, start=0.5, decay=0.95, hard_below=5e-4), 5e-4
    for epoch in (1, 10, 100):
        decay = 0.95 ** (epoch - 1)
        temperature, code = rule.temperature(State(epoch, 1000)), final + (0.5 - final) * decay
        assert temperature == pytest.approx(0.5 * decay)
        assert code - temperature == pytest.approx(final * (1 - decay))
    assert rule.temperature(State(1000, 1000)) == 0


def test_trap_options_of_scores_have_an_effect():
    """The toy code of rMCL stores conf_weight, rejection_method and number_unconfident, and never uses them."""
    outputs, target = draw(0, D)
    tasks = [Regression(D, score="bce", **given) for given in ({}, {"score_weight": 2.0}, {"negatives": 1})]
    torch.manual_seed(0)
    losses = [number(loss_of("smcl", task, outputs, target)) for task in tasks]
    assert len(set(losses)) == 3
    without = number(loss_of("smcl", Regression(D), outputs[:, :, :D], target))
    assert losses[1] - without == pytest.approx(4 * (losses[0] - without))


def test_trap_padding_is_not_a_target_far_away():
    """Official code fills padding with a large number, and drops targets whose distance is large; real ones too."""
    outputs = torch.zeros(2, 1, 1, dtype=torch.float64)
    far, padding = 1e6, torch.nan
    loss = loss_of_two(outputs, torch.tensor([[[far], [padding]]], dtype=torch.float64))
    assert loss == far**2
    assert winner_takes_all(torch.full((2, 1, 1), far))[0] == far


def loss_of_two(outputs, target):
    return float(methods.build("smcl", 2, task=Regression(1)).new_objective()(outputs, target).loss)

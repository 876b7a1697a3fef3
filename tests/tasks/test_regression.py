"""The regression task: losses against distributions, units, several targets, scores, networks, AMCL, bad input."""

import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from torchmcl import (
    Ensemble,
    EnsembleOutput,
    Regression,
    State,
    UsageError,
    methods,
    metrics,
    run_dataset_passes,
    tasks,
)
from torchmcl.structures.task import EvaluationBatch
from torchmcl.tasks.regression import LOG_SCALE, LOSSES

ANY = ("ie", "mcl", "smcl", "relaxed", "evolving", "annealed")
seeds = st.integers(0, 2**31)
M, B, D, T = 3, 6, 2, 4


def draw(seed, task, *, several=False, auxiliary=0):
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(M, B, task.outputs + auxiliary, generator=generator, dtype=torch.float64).requires_grad_()
    target = torch.randn(B, *[T] * several, task.targets, generator=generator, dtype=torch.float64)
    if several:
        padding = torch.rand(B, T, generator=generator) < 0.5
        padding[:, 2] = False
        target[padding] = torch.nan
    return outputs, target


def per_target(name, f, s, y):
    """The loss of one value, from PyTorch's distributions and criteria."""
    if name in ("gaussian", "laplace"):
        s = s.clamp(-LOG_SCALE, LOG_SCALE).exp()
        density = torch.distributions.Normal(f, s) if name == "gaussian" else torch.distributions.Laplace(f, s)
        return -density.log_prob(y)
    return {"squared": F.mse_loss, "absolute": F.l1_loss, "huber": F.smooth_l1_loss}[name](f, y)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("several", [False, True])
@given(seeds)
def test_losses_equal_a_slow_loop(name, several, seed):
    """ie: L = mean_b sum_m mean over valid targets t of mean_d l(f_md, y_td), in value and gradient."""
    task = Regression(D, loss=name)
    outputs, target = draw(seed, task, several=several)
    slow = 0
    for b in range(B):
        rows = [row for row in target[b].reshape(-1, D) if not row.isnan().any()]
        for m in range(M):
            values = [
                per_target(name, outputs[m, b, d], outputs[m, b, -D + d], row[d]) for row in rows for d in range(D)
            ]
            slow = slow + sum(values) / len(values) / B
    outcome = methods.build("ie", M, task=task).new_objective()(outputs, target)
    torch.testing.assert_close(outcome.loss, slow)
    torch.testing.assert_close(*(torch.autograd.grad(one, outputs, retain_graph=True) for one in (outcome.loss, slow)))
    assert outcome.weights.shape == outcome.take.shape == outcome.leave.shape == (M, B)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_finite_for_extreme_outputs(name):
    task = Regression(D, loss=name)
    outputs = torch.tensor([1e4, -1e4]).reshape(2, 1, 1).repeat(1, 1, task.outputs).requires_grad_()
    loss = methods.build("ie", 2, task=task).new_objective()(outputs, torch.zeros(1, D)).loss
    loss.backward()
    assert loss.isfinite()
    assert outputs.grad.isfinite().all()


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("several", [False, True])
@given(seeds)
def test_methods_assign_targets(name, several, seed):
    """Several targets are assigned one by one: L and its gradient equal those of the targets as separate examples."""
    task = Regression(D)
    outputs, target = draw(seed, task, several=several)
    objective, state = methods.build(name, M, task=task).new_objective(), State(5, 10, index=torch.arange(B))
    run_dataset_passes(objective, lambda x: EnsembleOutput(outputs), [(target, target, torch.arange(B))], state)
    outcome = objective(outputs, target, state)
    rows = target.reshape(B, -1, D)
    valid = ~rows.isnan().any(2)
    index = torch.arange(B)[:, None].expand_as(valid)[valid]
    weight = (1 / valid.sum(1))[index]
    alone = methods.build(name, M, task=task).new_objective()
    count = torch.arange(len(index))
    run_dataset_passes(alone, lambda x: EnsembleOutput(outputs[:, index]), [(rows, rows[valid], count)], state)
    found = alone(outputs[:, index], rows[valid], State(5, 10, index=count, sample_weight=weight))
    torch.testing.assert_close(outcome.loss, found.loss)
    torch.testing.assert_close(*(torch.autograd.grad(one.loss, outputs, retain_graph=True) for one in (outcome, found)))
    shares = torch.zeros(M, B, dtype=torch.float64).index_add(1, index, found.weights * weight)
    torch.testing.assert_close(outcome.weights, shares)


@pytest.mark.parametrize("loss", ["squared", "laplace"])
@pytest.mark.parametrize("several", [False, True])
@given(seeds)
def test_units_change_neither_the_loss_nor_the_quality(loss, several, seed):
    """Standardised targets have the same loss in any units, and predictions are in the units of the targets."""
    plain = Regression(D, loss=loss)
    outputs, target = draw(seed, plain, several=several)
    base = plain.standardised(target)
    unit, zero = torch.tensor([100.0, 0.01], dtype=torch.float64), torch.tensor([5e3, -2.0], dtype=torch.float64)
    other = plain.standardised(target * unit + zero)
    one, two = (methods.build("smcl", M, task=task).new_objective() for task in (base, other))
    torch.testing.assert_close(one(outputs, target).loss, two(outputs, target * unit + zero).loss)
    for mine, theirs in (
        (other.hypotheses(outputs), base.hypotheses(outputs)),
        (other.combine(outputs), base.combine(outputs)),
    ):
        torch.testing.assert_close(mine, theirs * unit + zero)
    if loss == "laplace":
        torch.testing.assert_close(other.scales(outputs), base.scales(outputs) * unit)
    values = target.reshape(-1, D)[~target.reshape(-1, D).isnan().any(1)]
    torch.testing.assert_close(torch.tensor(base.mean), values.mean(0).float(), atol=1e-6, rtol=1e-5)
    assert plain.mean is None


@pytest.mark.parametrize("several", [False, True])
def test_units_of_weighted_examples_are_those_of_copies(several):
    _, target = draw(0, Regression(D), several=several)
    often = torch.tensor([3, 1, 2, 1, 0, 5])
    weighted = Regression(D).standardised(target, often)
    copies = Regression(D).standardised(target.repeat_interleave(often, 0))
    assert weighted.mean == pytest.approx(copies.mean)
    assert weighted.scale == pytest.approx(copies.scale)


def test_a_perfect_network_predicts_in_the_units_of_the_targets():
    target = torch.tensor([[1000.0], [3000.0]])
    task = Regression(1).standardised(target)
    outputs = ((target - 2000) / 1000)[None]
    assert methods.build("ie", 1, task=task).new_objective()(outputs, target).loss == 0
    assert torch.equal(task.combine(outputs), target)


def test_one_value_per_example_needs_no_second_axis():
    task = Regression(1)
    outputs, target = torch.randn(M, B, 1), torch.randn(B)
    objective = methods.build("smcl", M, task=task).new_objective()
    assert objective(outputs, target).loss == objective(outputs, target[:, None]).loss
    assert objective(outputs, target.round().int()).loss == objective(outputs, target.round()).loss


def test_a_task_is_a_value():
    task = Regression(2, loss="gaussian", score="ce").standardised(torch.randn(9, 2))
    assert task == replace(task, score="ce") == pickle.loads(pickle.dumps(task))
    assert hash(task) == hash(replace(task))
    assert repr(Regression(2, loss="gaussian", score="ce")) == "Regression(targets=2, loss=gaussian, score=ce)"
    assert tasks.build("regression", 3) == Regression(3)
    mixture = Regression(2, loss="gaussian", score="mdn")
    assert tasks.build("regression", 2, **mixture.options) == mixture == replace(mixture)
    assert replace(mixture, score="ce") == Regression(2, loss="gaussian", score="ce")
    assert mixture.density == "gaussian"
    assert [Regression(2, loss=loss, score=score).outputs for loss, score in (("huber", None), ("laplace", "bce"))] == [
        2,
        5,
    ]


@pytest.mark.parametrize("kind", ["bce", "ce", "mixture"])
@pytest.mark.parametrize("name", ANY)
def test_scores_learn_which_hypothesis_wins(kind, name):
    """Targets are -1 (in one of four cases) or 1: the scores of the winners become the frequencies of the modes."""
    torch.manual_seed(0)
    task = Regression(1, loss="gaussian", score=kind)
    target = torch.where(torch.rand(4000) < 0.25, -1.0, 1.0)[:, None]
    scores = torch.zeros(2, 1, 1, requires_grad=True)
    hypotheses = torch.tensor([-1.0, 1.0]).reshape(2, 1, 1)
    objective = methods.build(name, 2, task=task).new_objective()
    optimizer, state = torch.optim.SGD([scores], lr=2.0), State(10, 10, index=torch.arange(4000))
    outputs = torch.cat([hypotheses, torch.full((2, 1, 1), -2.0), scores], dim=2).expand(2, 4000, 3)
    run_dataset_passes(objective, lambda x: EnsembleOutput(outputs), [(target, target, state.index)], state)
    for _ in range(200):
        outputs = torch.cat([hypotheses, torch.full((2, 1, 1), -2.0), scores], dim=2).expand(2, 4000, 3)
        optimizer.zero_grad()
        objective(outputs, target, state).loss.backward()
        optimizer.step()
    share = float((target < 0).float().mean())
    found = task.scores(outputs.detach())
    assert found[:, 0].tolist() == pytest.approx([share, 1 - share], abs=0.02)
    assert float(task.combine(outputs.detach())[0]) == pytest.approx(1 - 2 * share, abs=0.04)


@given(seeds)
def test_scores_do_not_change_the_assignment_or_the_gradient_of_hypotheses(seed):
    task = Regression(D, loss="gaussian", score="mixture")
    outputs, target = draw(seed, task)
    with_scores = methods.build("smcl", M, task=task).new_objective()(outputs, target)
    without = methods.build("smcl", M, task=Regression(D, loss="gaussian")).new_objective()(outputs[:, :, :-1], target)
    assert torch.equal(with_scores.weights, without.weights)
    one, two = (torch.autograd.grad(each.loss, outputs, retain_graph=True)[0] for each in (with_scores, without))
    torch.testing.assert_close(one[:, :, :-1], two[:, :, :-1])


@pytest.mark.parametrize("kind", [None, "bce", "ce"])
@given(seeds)
def test_permuting_members_changes_nothing(kind, seed):
    task = Regression(D, score=kind)
    outputs, target = draw(seed, task, several=True)
    order = torch.tensor([2, 0, 1])
    for name in ("smcl", "annealed", "relaxed"):
        objective = methods.build(name, M, task=task).new_objective()
        one, two = objective(outputs, target, State(2, 9)), objective(outputs[order], target, State(2, 9))
        torch.testing.assert_close(one.loss, two.loss)
        torch.testing.assert_close(one.weights[order], two.weights)
    torch.testing.assert_close(task.combine(outputs), task.combine(outputs[order]))


@pytest.mark.parametrize("exchange", ["none", "weight_sharing"])
def test_heads_on_one_trunk_and_separate_networks(exchange):
    """Two modes are found by M separate networks, and by M linear heads on one trunk."""
    torch.manual_seed(0)
    method = methods.build("annealed", members=2, task=Regression(1, score="bce"))

    def network(outputs):
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, outputs))

    ensemble = Ensemble.build(method, network, cut=2, exchange=exchange)
    assert len(ensemble.stems) == (1 if exchange == "weight_sharing" else 2)
    objective, optimizer = method.new_objective(), torch.optim.Adam(ensemble.parameters(), lr=0.01)
    for epoch in range(1, 301):
        x = torch.rand(64, 1)
        target = torch.where(torch.rand(64, 1) < 0.5, x, -x - 1)
        optimizer.zero_grad()
        objective(ensemble(x), target, State(epoch, 300)).loss.backward()
        optimizer.step()
    x = torch.linspace(0.1, 0.9, 20)[:, None]
    with torch.no_grad():
        low, high = method.task.hypotheses(ensemble(x)).sort(0).values
    assert float((high - x).abs().mean()) < 0.15
    assert float((low + x + 1).abs().mean()) < 0.15


@pytest.mark.parametrize("loss", ["squared", "gaussian"])
@pytest.mark.parametrize("several", [False, True])
@given(seeds)
def test_amcl_declines_examples(loss, several, seed):
    """eq. 5 with a binary auxiliary output: take l - log(1 - p(aux)), leave beta (-log p(aux))."""
    task = Regression(D, loss=loss)
    outputs, target = draw(seed, task, several=several, auxiliary=1)
    method = methods.build("amcl", M, task=task, memory=False, beta=0.3)
    assert method.outputs == outputs.shape[2]
    outcome = method.new_objective()(outputs, target)
    slow = 0
    for b in range(B):
        rows = [row for row in target[b].reshape(-1, D) if not row.isnan().any()]
        for row in rows:
            p = outputs[:, b, -1].sigmoid()
            take = [
                sum(per_target(loss, outputs[m, b, d], outputs[m, b, d - D - 1], row[d]) for d in range(D)) / D
                - torch.log(1 - p[m])
                for m in range(M)
            ]
            leave = [-0.3 * torch.log(p[m]) for m in range(M)]
            best = min(range(M), key=lambda m: float((take[m] - leave[m]).detach()))
            costs = [take[m] if m == best else leave[m] for m in range(M)]
            slow = slow + sum(costs) / (len(rows) * B)
    torch.testing.assert_close(outcome.loss, slow)
    torch.testing.assert_close(*(torch.autograd.grad(one, outputs, retain_graph=True) for one in (outcome.loss, slow)))


@pytest.mark.parametrize("several", [False, True])
def test_amcl_has_a_memory_of_groups(several):
    task = Regression(1)
    group = torch.tensor([0, 0, 1, 1])
    hypotheses = torch.tensor([0.0, 10.0]).reshape(2, 1, 1).expand(2, 4, 1)
    outputs = torch.cat([hypotheses, torch.zeros(2, 4, 1)], dim=2).requires_grad_()
    target = torch.tensor([[10.0], [10.0], [0.0], [0.0]])
    if several:  # of three targets, two are near the same member
        target = torch.stack([target, target, 10 - target], dim=1)
    method = methods.build("amcl", 2, task=task, groups=2, warmup=1)
    objective = method.new_objective()
    objective(outputs, target, State(1, 9, group=group))
    expected = [[2 / 3, 4 / 3], [4 / 3, 2 / 3]] if several else [[0, 2], [2, 0]]
    torch.testing.assert_close(objective.memory.counts.double(), torch.tensor(expected, dtype=torch.float64))
    outcome = objective(outputs, target, State(2, 9, group=group))
    assert outcome.weights.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]
    sure = torch.cat([hypotheses, torch.tensor([[9.0], [-9.0]]).expand(2, 4).unsqueeze(2)], dim=2)
    torch.testing.assert_close(method.combine(sure), torch.full((4, 1), 10.0), atol=0.01, rtol=0)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("loss", ["squared", "laplace"])
def test_evaluation_in_batches_equals_the_functions(loss, several):
    task = Regression(D, loss=loss, score="ce")
    outputs, target = draw(1, task, several=several)
    task = task.standardised(target)
    output = EnsembleOutput(outputs.detach())
    combined, index = task.combine(output), torch.arange(B)
    batches = [
        EvaluationBatch(target[part], EnsembleOutput(output.logits[:, part]), combined[part], index[part])
        for part in index.split([4, 2])
    ]
    found = task.evaluate(batches)
    members, scores = task.hypotheses(output), task.scores(output)
    expected = {
        "oracle_rmse": metrics.oracle_rmse(members, target),
        "rmse": metrics.rmse(combined, target),
        "crps": metrics.crps(members, scores, target),
        "energy_score": metrics.energy_score(members, scores, target),
    }
    if several:
        expected["emd"] = metrics.earth_movers_distance(members, scores, target)
    if loss == "laplace":
        expected["nll"] = metrics.mixture_nll(members, scores, target, task.scales(output), "laplace")
    for name, value in expected.items():
        assert found.pop(name) == pytest.approx(float(value), abs=1e-5), name
    assert found.pop("members") == pytest.approx(metrics.member_rmse(members, target).tolist(), abs=1e-5)
    winners = 100 * metrics.share(metrics.winners(members, target))
    assert found.pop("winners") == pytest.approx(winners.tolist(), abs=1e-3)
    assert found == {"examples": B}
    each = task.metrics(output, combined, target)
    assert float(each["squared_error"].mean().sqrt()) == pytest.approx(float(expected["rmse"]))
    assert float(each["oracle_squared_error"].mean().sqrt()) == pytest.approx(float(expected["oracle_rmse"]))


GOOD = torch.randn(6, 2)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (GOOD[:, :1], r"Expected targets \(B, D\) = \(6, 2\), or \(B, T, D\) .*, got \(6, 1\) of float32"),
        (GOOD[:5], r"got \(5, 2\)"),
        (GOOD[:, 0], r"got \(6,\)"),
        (GOOD > 0, "got .6, 2. of bool"),
        (torch.where(torch.arange(6)[:, None] == 4, torch.nan, GOOD), "Expected finite targets, got nan in example 4"),
        (torch.where(torch.arange(6)[:, None] == 3, torch.inf, GOOD), "Expected finite targets, got inf in example 3"),
        (torch.where(torch.arange(2) == 1, torch.nan, GOOD)[:, None], "Expected finite targets, got nan in example 0"),
        (torch.where(torch.arange(6)[:, None] == 2, torch.nan, GOOD)[:, None], "Example 2 has no target, only padding"),
    ],
)
def test_bad_targets_are_one_clear_line(target, message):
    objective = methods.build("smcl", M, task=Regression(2)).new_objective()
    with pytest.raises(UsageError, match=message):
        objective(torch.randn(M, 6, 2), target)


@pytest.mark.parametrize("outputs", [torch.zeros(M, 6, 4), torch.zeros(M, 6, 1), torch.zeros(M, 6, 2, 5)])
def test_networks_with_other_outputs_are_refused(outputs):
    with pytest.raises(UsageError, match=r"Expected 2 outputs per member.*method.outputs"):
        methods.build("smcl", M, task=Regression(2)).new_objective()(outputs, GOOD)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([[1.0, 7.0], [2.0, 7.0]]), "Target 1 is 7 for all 2 training examples. Remove this target"),
        (torch.tensor([[1.0, 7.0], [torch.nan, 8.0]]), "Expected finite targets, got nan in example 1"),
        (torch.tensor([[1.0, 7.0]]), "Expected at least two training examples with targets, got 1. Add examples"),
        (torch.zeros(0, 2), "Expected targets"),
        (torch.tensor(3.0), "Expected targets"),
    ],
)
def test_targets_that_cannot_be_standardised(targets, message):
    with pytest.raises(UsageError, match=message):
        Regression(2).standardised(targets)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [
        (lambda o, y, s: (o - y).square(), r"got \(3, 6, 2\)"),
        (lambda o, y, s: 0.0, "got float"),
        (lambda o, y, s: (o > y).sum(2), r"got \(3, 6\) of int64"),
    ],
)
def test_a_loss_of_the_wrong_shape(loss, shape):
    objective = methods.build("smcl", M, task=Regression(2, loss=loss)).new_objective()
    with pytest.raises(UsageError, match=rf"a floating point loss \(M, B\) = \(3, 6\) from Regression, {shape}"):
        objective(torch.zeros(M, 6, 2), GOOD)


def test_a_loss_of_the_wrong_shape_for_several_targets():
    objective = methods.build("smcl", M, task=Regression(2, loss=lambda o, y, s: o.mean(2))).new_objective()
    with pytest.raises(UsageError, match=r"loss \(M, B, T\) = \(3, 6, 1\) from Regression, got \(3, 6\)"):
        objective(torch.zeros(M, 6, 2), GOOD[:, None])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"targets": 0}, "Expected 1 to 100,000 targets, got 0"),
        ({"targets": "2"}, "Expected an integer for targets"),
        ({"loss": "square"}, "Unknown loss 'square'. Did you mean 'squared'?"),
        ({"score": "bc"}, "Unknown kind of score 'bc'. Did you mean 'bce'?"),
        ({"score": "mixture"}, "The score 'mixture' needs a likelihood"),
        ({"score": "mdn"}, "The score 'mdn' needs a likelihood"),
        ({"score_weight": -1.0}, "Expected score_weight >= 0"),
        ({"score": "bce", "negatives": 0}, "Expected negatives >= 1 or None, got 0"),
        ({"mean": (0.0,)}, "Expected one mean for each of the 2 targets, got 1"),
        ({"scale": (1.0, 0.0)}, "Expected only positive values in scale"),
    ],
)
def test_bad_options_are_one_clear_line(given, message):
    with pytest.raises(UsageError, match=message):
        Regression(**{"targets": 2, **given})


def test_amcl_explains_what_it_needs():
    with pytest.raises(UsageError, match="Pass groups=… or memory=False"):
        methods.build("amcl", 2, task=Regression(1))
    with pytest.raises(UsageError, match=r"Use Regression\(score=None\)"):
        methods.build("amcl", 2, task=Regression(1, score="bce"), memory=False)
    with pytest.raises(UsageError, match="class probabilities for cmcl, got Regression"):
        methods.build("cmcl", 2, task=Regression(1))
